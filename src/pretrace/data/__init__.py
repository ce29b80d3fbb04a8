"""From text to the exact order of tokens: corpora, tokenizers, token files, preparation, orders, answers.

- `corpus.CorpusSpec`, `corpus.read`: documents of files, folders and remote paths, streamed.
- `dedup.deduplicate`: exact and near duplicates, which copy is kept, and a report.
- `tokenizer.train`, `tokenizer.load`: byte-level BPE and what others use.
- `tokenfile.TokenFile`, `tokenfile.Writer`: the .bin/.idx pair.
- `order.DataSpec`, `order.open_order`: which sample stands at which position, and what it holds.

Nothing here imports torch.
"""

from pretrace.data.corpus import CorpusSpec, Document
from pretrace.data.order import DataSpec, Order, first_difference, open_order
from pretrace.data.tokenfile import TokenFile

__all__ = ["CorpusSpec", "DataSpec", "Document", "Order", "TokenFile", "first_difference", "open_order"]
