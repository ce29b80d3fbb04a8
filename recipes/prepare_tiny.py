"""Writes the token files that the tiny recipes read: the embedded books, every tenth chapter held out.

python recipes/prepare_tiny.py [FOLDER]          (data/tiny unless said otherwise)
"""

import sys
from pathlib import Path

import numpy as np

from pretrace.data import CorpusSpec
from pretrace.data import tokenizer as tokenizers
from pretrace.data.corpus import read
from pretrace.data.embedded import books
from pretrace.data.tokenfile import token_dtype, write_pair

END = "<|endoftext|>"


def main(folder, vocab_size=1024):
    spec = CorpusSpec(paths=(str(books()),), format="jsonl", field="text", holds="text", id_field="id")
    texts = [document.text for document in read(spec)]
    train = [text for i, text in enumerate(texts) if i % 10]
    tokenizer = tokenizers.train(iter(train), vocab_size, specials=(END,))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers.save(tokenizer, folder / "tokenizer.json")
    for name, part in (("train", train), ("held_out", texts[::10])):
        ends = tokenizer.special(END)
        write_pair(folder / name, [np.append(np.asarray(ids, np.int64), ends) for ids in tokenizer.encode_batch(part)],
                   token_dtype(tokenizer.vocab_size))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/tiny"))
