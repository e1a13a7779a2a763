"""What can be wrong with a run's settings, found before the work that takes minutes."""

import math
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from lightning.pytorch.callbacks import Timer

from mt.model.build import ARCHITECTURES, build_model
from mt.search import check_options
from mt.training.module import TranslationModule

WHOLE = {  # the least of each
    "seed": 0,
    "data.vocab_size": 1,
    "data.max_pieces": 1,
    "data.held_out": 1,
    "data.batch_tokens": 2,
    "data.num_workers": 0,
    "optimizer.warmup_steps": 0,
    "trainer.max_steps": -1,
    "trainer.max_epochs": -1,
    "trainer.accumulate_grad_batches": 1,
}
SHARES = ("optimizer.beta2", "optimizer.label_smoothing")  # in [0, 1)
REAL = {  # least and most of each
    "data.max_ratio": (1, math.inf),
    "data.joined": (0, 0.5),
    "data.noise": (0, 1),
    "data.sampling": (0, 1),
    "optimizer.learning_rate": (0, math.inf),
    "optimizer.weight_decay": (0, math.inf),
}
EMBEDDING_STARTS = ("latent_semantics", "random")
TEXT = ("data.src", "data.tgt", "data.cache_dir")


def check_settings(settings: Mapping[str, Any]) -> None:
    """settings: as conf/train.yaml has them. ValueError, or TypeError for a name that isn't known, in one line."""
    for name, least in WHOLE.items():
        value = _value(settings, name)
        if type(value) is not int or not least <= value < 2**32:
            raise ValueError(f"{name}={value!r} is not a whole number from {least} on")
    for name in SHARES:
        value = _value(settings, name)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise ValueError(f"{name}={value!r} is not a number in [0, 1)")
    for name, (least, most) in REAL.items():
        value = _value(settings, name)
        if type(value) not in (int, float) or not least <= value <= most or value == math.inf:
            bounds = f"{least} on" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"{name}={value!r} is not a number from {bounds}")
    for name in TEXT:
        value = _value(settings, name)
        if not isinstance(value, str):
            raise ValueError(f"{name}={value!r} is no text")
    if type(one := _value(settings, "data.one_translation")) is not bool:
        raise ValueError(f"data.one_translation={one!r} is neither true nor false")
    if (start := _value(settings, "embedding_start")) not in EMBEDDING_STARTS:
        raise ValueError(f"embedding_start={start} is none of {', '.join(EMBEDDING_STARTS)}")
    data, model, decoding = (_value(settings, name) for name in ("data", "model", "decoding"))
    if data["batch_tokens"] <= data["max_pieces"]:
        raise ValueError(
            f"data.batch_tokens={data['batch_tokens']} leaves no room for a sentence of "
            f"data.max_pieces={data['max_pieces']} pieces and its EOS: raise the first or lower the second"
        )
    for name in ("max_steps", "max_epochs", "val_check_interval"):
        if not (value := _value(settings, f"trainer.{name}")):
            raise ValueError(f"trainer.{name}={value}: nothing would be trained, or no checkpoint written")
    trainer = settings["trainer"]
    limits = {name: _value(settings, f"trainer.{name}") for name in ("max_time", "max_epochs", "max_steps")}
    if limits["max_time"] is None and limits["max_epochs"] == limits["max_steps"] == -1:
        raise ValueError(f"none of {', '.join(f'trainer.{name}' for name in limits)} bounds the run: give one")
    if Timer(limits["max_time"]).time_remaining() == 0:
        raise ValueError(f"trainer.max_time={limits['max_time']}: nothing would be trained")
    for name in ("limit_train_batches", "limit_val_batches"):
        if trainer.get(name) == 0:
            raise ValueError(f"trainer.{name}=0: nothing would be trained, or no checkpoint written")
    if trainer.get("fast_dev_run"):
        raise ValueError("trainer.fast_dev_run writes no checkpoint to test: experiment=smoke takes seconds")
    clip = _value(settings, "trainer.gradient_clip_val")
    if clip is not None and (type(clip) not in (int, float) or not clip > 0):
        raise ValueError(f"trainer.gradient_clip_val={clip!r} is not a number above 0, or null")
    if (algorithm := trainer.get("gradient_clip_algorithm")) not in (None, "norm"):
        raise ValueError(f"trainer.gradient_clip_algorithm={algorithm} is not norm")
    if unknown := settings["optimizer"].keys() - signature(TranslationModule).parameters.keys():
        raise ValueError(f"optimizer.{min(unknown)} is not known")
    _check_kinds("decoding", decoding, check_options)
    check_options(**decoding)
    _check_kinds("model", model, ARCHITECTURES.get(model.get("architecture"), build_model))
    with torch.device("meta"):
        build_model(vocab_size=data["vocab_size"], **model)


def _check_kinds(group: str, values: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Numbers are numbers. Their bounds, and which names there are, the function says itself."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{group}={values!r} holds no settings")
    for name, parameter in signature(function).parameters.items():
        value = values.get(name, 0)
        if parameter.annotation is int and type(value) is not int:
            raise ValueError(f"{group}.{name}={value!r} is not a whole number")
        if parameter.annotation is float and type(value) not in (int, float):
            raise ValueError(f"{group}.{name}={value!r} is not a number")


def _value(settings: Mapping[str, Any], name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"{name} is missing")
        value = value[part]
    return value
