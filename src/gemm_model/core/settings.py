"""The configuration of a run: a GPU, a model and the model's options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gemm_model.config import COMMAND_LINE, load_config, load_gpu_mapping, resolve_config
from gemm_model.config.options import check_options
from gemm_model.core.gpu import GpuSpec, gpu_from_mapping, load_gpu, with_sms
from gemm_model.errors import InputError, require_one_of

READ_BY_MODELS = ("gpu", "model", "model_opts")
"""Parts of the configuration that a prediction reads; `timing` is for measuring."""
FOLLOWS = "follows from gpu.sm_count"
OF_COLUMNS = ("model_opts.regime", "model_opts.l2")
"""Keys that have a column of a table to themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration after all overrides."""

    gpu: GpuSpec
    model: str
    options: Mapping[str, Any]
    sources: Mapping[str, str] = field(compare=False)
    """Origin of each value by its dotted key: a file, or the command line."""

    def value(self, key: str) -> Any:
        """The value of a dotted key of `sources`."""
        part, *names = key.split(".")
        value: Any = {"gpu": self.gpu, "model": self.model, "model_opts": self.options}[part]
        for name in names:
            inner: int | str = int(name) if name.isdecimal() else name
            value = value.get(inner) if hasattr(value, "get") else getattr(value, name)
        return value

    @property
    def changes(self) -> dict[str, str]:
        """The column `settings` of a table: what the command line chose that no other column tells, as key=value
        words; no column where that is nothing.
        """
        chosen = {"gpu": self.gpu.file, "model": "" if self.model == load_config()["model"] else self.model}
        for key, source in self.sources.items():
            if source == COMMAND_LINE and key not in OF_COLUMNS:
                chosen[key] = "null" if self.value(key) is None else str(self.value(key))
        words = [f"{key}={text}" for key, text in chosen.items() if text]
        return {"settings": shlex.join(words)} if words else {}


def load_settings(
    overrides: Sequence[str],
    defaults: Mapping[str, str],
    *,
    sms: int | None = None,
    options: Mapping[str, Any] | None = None,
    parts: Sequence[str] = READ_BY_MODELS,
) -> Settings:
    """Settings from `key=value` overrides over choices of `gpu` and `model`.

    `sms` limits a kernel to that many SMs, as the override gpu.sm_count does. `options` are the model's, by
    name. `parts` are the sections that the caller reads; an override of any other section is refused. Raises
    InputError for an unknown key, name or value.
    """
    for word in overrides:
        part = word.lstrip("+").partition("=")[0].partition(".")[0]
        require_one_of(f"override {word!r}: not read here", part, parts)
    resolved = resolve_config(overrides, defaults)
    values = resolved.values["gpu"]
    if sms is None and resolved.changed("gpu.sm_count") and not resolved.changed("gpu.resident_clusters"):
        described = _sms_described(resolved.gpu_source)
        # Fewer SMs than a measured GPU has are a part of that GPU; more SMs make another GPU.
        if described is not None:
            sms, values["sm_count"] = values["sm_count"], described
    gpu = _gpu_of(values, resolved.gpu_source)
    model, known, sources = resolved.values["model"], resolved.values["model_opts"], dict(resolved.sources)
    if not isinstance(known, Mapping):
        raise InputError(f"override model_opts is {known!r}; expected a mapping of the model's options")
    for name, value in (options or {}).items():
        if name not in known:
            raise InputError(f"--{name} is {value!r}; {model} has no such option")
        if resolved.changed(f"model_opts.{name}") and known[name] != value:
            raise InputError(
                f"--{name} is {value!r} and model_opts.{name} {known[name]!r}; expected one of them"
            )
        sources[f"model_opts.{name}"] = COMMAND_LINE
    chosen = {**known, **(options or {})}
    check_options(model, chosen)
    if sms is not None:
        sources |= {key: FOLLOWS for key in sources if key.startswith("gpu.resident_clusters")}
        sources["gpu.sm_count"] = COMMAND_LINE
    return Settings(
        gpu=gpu if sms is None else with_sms(gpu, sms), model=model, options=chosen, sources=sources
    )


def _gpu_of(values: Mapping[str, Any], source: str) -> GpuSpec:
    """The GPU from plain values. An error in the file names the file; one from an override does not."""
    file = "" if source.startswith("config/gpu/") else source
    if file:
        load_gpu(file)
    return gpu_from_mapping(values, file)


def _sms_described(gpu_source: str) -> int | None:
    """SMs of a GPU's description if its resident clusters were measured, else None."""
    name = gpu_source.removeprefix("config/gpu/").removesuffix(".yaml")
    values = load_gpu_mapping(name if gpu_source.startswith("config/gpu/") else gpu_source)
    return values.get("sm_count") if values.get("resident_clusters") else None
