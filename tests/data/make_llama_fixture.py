"""Make tests/data/llama: models that transformers wrote, and what it computes with them, in float64.

Run from the repository's root with torch and transformers installed (the extra `peers`):

    python -m tests.data.make_llama_fixture
"""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import save_file

from tests.nn.transformers_reference import CONFIGURATIONS, draw_tokens, evaluate, float64_throughout, make_model

FOLDER = Path(__file__).parent / "llama"


def main() -> None:
    tokens, targets = draw_tokens()
    for seed, (name, configuration) in enumerate(CONFIGURATIONS.items()):
        with float64_throughout():
            model = make_model(configuration, seed)
            expected = evaluate(model, tokens, targets)
        in_parts = name == "grouped_query"
        model.save_pretrained(FOLDER / name, max_shard_size="3KB" if in_parts else "1GB")
        (FOLDER / name / "generation_config.json").unlink(missing_ok=True)
        save_file({"tokens": tokens, "targets": targets, **expected}, FOLDER / name / "expected.safetensors")


if __name__ == "__main__":
    main()
