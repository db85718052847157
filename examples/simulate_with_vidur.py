"""Let Vidur time batches of Llama 3 8B on an L40S, which it does not know; nothing is downloaded."""

import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from vidur.config import CacheConfig, RandomForrestExecutionTimePredictorConfig, ReplicaConfig
from vidur.config.device_sku_config import L40DeviceSKUConfig
from vidur.entities import Batch
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry

from gemm_model.cli import main as gemm_model

FOREST = {"num_estimators": [20], "max_depth": [16], "min_samples_split": [2], "num_training_job_threads": 1}


def main(cache: Path) -> None:
    class L40S(L40DeviceSKUConfig):  # as much memory
        get_type = staticmethod(lambda: "l40s")

    model, network = cache / "meta-llama/Llama-3-8B.json", cache / "profiling_data/network/datasets--own--net"
    texts = {network / "refs/main": "own", network / "snapshots/own/config.json": '{"sku": "l40_pcie"}'}
    for path, text in {**texts, model: Path(__file__).with_name("llama_8b.json").read_text()}.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    gemm_model(f"emit vidur --gpu l40s --node-gpus 1 --model {model} --output {cache}".split())
    data = {"model_profiling_dataset": "gemm-model/l40s-meta-llama-Llama-3-8B", "cache_dir": str(cache)}
    data |= {"network_profiling_dataset": "own/net", "prediction_max_tokens_per_request": 4096}
    config = RandomForrestExecutionTimePredictorConfig(**data, **FOREST)
    replica = ReplicaConfig("meta-llama/Llama-3-8B", 0.8, 1, 1, device="l40s", network_device="l40_pcie")
    predictor = ExecutionTimePredictorRegistry.get(config.get_type(), config, replica, CacheConfig())
    for queries, keys in (([2048], [2048]), ([1] * 8, [2048] * 8)):
        batch = Batch(0, [None] * len(queries), queries, keys)
        print(f"{sum(queries)} tokens: {predictor.get_execution_time(batch, 0).model_time_ms:.1f} ms")


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp()))
