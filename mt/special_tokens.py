"""The ids every model, tokenizer and batch agrees on: constants, not configuration."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3

NEVER = [PAD, UNK, BOS]
"""What search never produces."""
