"""The configuration tree (YAML beside this file), read with Hydra and changed by `key=value` overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_model.core.errors import InputError

CONFIG_DIR = Path(__file__).parent
YAML_SUFFIXES = (".yaml", ".yml")


def gpu_names() -> list[str]:
    """Names of the GPUs that the package describes."""
    return sorted(path.stem for path in (CONFIG_DIR / "gpu").glob("*.yaml"))


def model_names() -> list[str]:
    """Names of the models that the package configures."""
    return sorted(path.stem for path in (CONFIG_DIR / "model").glob("*.yaml"))


def is_yaml_file(name_or_path: str) -> bool:
    """Whether a name is that of a file, not of something in the package."""
    return name_or_path.endswith(YAML_SUFFIXES)


def read_yaml_mapping(path: Path, what: str, *, interpolated: bool = True) -> dict[str, Any]:
    """The mapping in a YAML file; raises InputError for a file that is not there or holds something else.

    `interpolated` False is for large files of plain values: OmegaConf's own loader takes a second a megabyte.
    """
    import yaml
    from omegaconf import OmegaConf

    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a YAML file with {what}")
    try:
        if interpolated:
            loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        else:
            fastest = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            loaded = yaml.load(path.read_text(), Loader=fastest)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path}: not readable as YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path}: expected a YAML mapping with {what}")
    return {str(key): value for key, value in loaded.items()}


@lru_cache(maxsize=64)
def _packaged_gpu(name: str) -> dict[str, Any]:
    return read_yaml_mapping(CONFIG_DIR / "gpu" / f"{name}.yaml", "a GPU description")


def load_gpu_mapping(name_or_path: str) -> dict[str, Any]:
    """Plain values of a GPU description, from the package or from a file."""
    if is_yaml_file(name_or_path):
        return read_yaml_mapping(Path(name_or_path), "a GPU description")
    if name_or_path not in gpu_names():
        raise InputError(
            f"unknown GPU {name_or_path!r}; expected a YAML file or one of {', '.join(gpu_names())}"
        )
    return _packaged_gpu(name_or_path)


def load_config(overrides: Sequence[str] = (), defaults: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The configuration after `key=value` overrides, as plain values: gpu, model, model_opts, ...

    `defaults` are choices ('gpu', 'model') that the overrides may replace. `gpu=` takes a name or the path
    of a YAML file. Raises InputError for an unknown key, name or value.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    choices = dict(defaults or {})
    rest = []
    for override in overrides:
        key, separator, value = override.lstrip("+").partition("=")
        if not separator or not key:
            raise InputError(f"override {override!r}: expected key=value")
        if key in ("gpu", "model"):
            choices[key] = value
        else:
            rest.append(override)
    gpu_file = choices.pop("gpu") if is_yaml_file(choices.get("gpu", "")) else None
    if "gpu" in choices and choices["gpu"] not in gpu_names():
        load_gpu_mapping(choices["gpu"])
    if "model" in choices and choices["model"] not in model_names():
        raise InputError(f"unknown model {choices['model']!r}; expected one of {', '.join(model_names())}")
    gpu_overrides = [item for item in rest if gpu_file is not None and item.lstrip("+").startswith("gpu.")]
    hydra_overrides = [f"{key}={value}" for key, value in choices.items()]
    hydra_overrides += [item for item in rest if item not in gpu_overrides]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(CONFIG_DIR.resolve()), version_base="1.3"):
            config = compose(config_name="config", overrides=hydra_overrides)
        if gpu_file is not None:
            with_gpu = OmegaConf.create(load_gpu_mapping(gpu_file))
            OmegaConf.set_struct(with_gpu, True)
            dotlist = [item.lstrip("+").removeprefix("gpu.") for item in gpu_overrides]
            with_gpu.merge_with_dotlist(dotlist)
            OmegaConf.set_struct(config, False)
            config.gpu = with_gpu
        plain = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        message = " ".join(str(error).split())
        raise InputError(f"override not understood: {message}") from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
