"""Runs on disk by P real processes; `how` names the recipe's file, the folder, the steps and the engine."""

from pathlib import Path

import torch.distributed as dist

from pretrace import train
from pretrace.recipe import load
from pretrace.train import Company, RunFolder
from pretrace.train.team import Team


def run(rank, world, how):
    team = Team(rank, world, dist.group.WORLD)
    company = Company(team=team, engine=how["engine"])
    folder = Path(how["folder"])
    there = RunFolder(folder).recipe.exists()
    dist.barrier()  # nobody makes the folder before all have looked
    if there:
        result = train.resume(folder, changes={"steps": how["steps"]}, company=company)
    else:
        result = train.run(load(how["recipe"]).with_values({"steps": how["steps"]}), folder, company=company)
    return result.steps, result.loss
