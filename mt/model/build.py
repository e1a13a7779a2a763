"""From the plain arguments that a checkpoint holds to a model."""

from typing import Any

from mt.model.encoder_decoder import EncoderDecoder
from mt.model.recurrent import Recurrent
from mt.model.transformer import Transformer

ARCHITECTURES: dict[str, type[EncoderDecoder]] = {"transformer": Transformer, "recurrent": Recurrent}


def build_model(*, architecture: str, **arguments: Any) -> EncoderDecoder:
    """ValueError for an architecture that there is not, TypeError for arguments that are not its constructor's."""
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture={architecture} is none of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[architecture](**arguments)
