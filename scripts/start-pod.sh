#!/usr/bin/env bash
# Starts or continues a run on a rented machine that may come back empty.
#
#   VOLUME=/workspace RECIPE=recipes/gpt2-124m-fineweb-edu.yaml RUN=gpt2 [MIRROR=s3://bucket/gpt2] [PROCESSES=8] scripts/start-pod.sh
#
# What is kept lies on VOLUME: the environment, the data, the run. What is not kept is made again: a missing environment is built
# from constraints.txt, a missing run is fetched from MIRROR, else begun. The same command is right at every start.
set -euo pipefail
: "${VOLUME:?the folder that survives}" "${RECIPE:?the recipe}" "${RUN:?the name of the run}"
here=$(cd "$(dirname "$0")/.." && pwd)
environment=$VOLUME/environment
stamp=$environment/built-from
built_from=$(cat "$here/constraints.txt" "$here/pyproject.toml" | sha256sum | cut -d' ' -f1)

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$built_from" ]; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install -q -c "$here/constraints.txt" -e "$here[data,remote]"
  echo "$built_from" > "$stamp" # last: a half-built environment is built again
fi

cd "$VOLUME" # data/... of the recipe lies here
mkdir -p runs
case $RECIPE in /*) recipe=$RECIPE ;; *) recipe=$here/$RECIPE ;; esac
options=(train "$recipe" --out "runs/$RUN" --go-on)
[ -z "${MIRROR:-}" ] || options+=(--mirror "$MIRROR")
if [ "${PROCESSES:-1}" -gt 1 ]; then
  exec "$environment/bin/torchrun" --standalone --nproc-per-node "$PROCESSES" -m pretrace "${options[@]}" "$@"
fi
exec "$environment/bin/python" -m pretrace "${options[@]}" "$@"
