"""pretrace: run a language-model pretraining run again, check it, and explain it."""

__version__ = "0.1.0"
