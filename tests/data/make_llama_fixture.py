"""Make tests/data/llama and tests/data/mixtral: models that transformers wrote, and its results with them in float64.

Run from the repository's root with torch and transformers installed (the extra `peers`):

    python -m tests.data.make_llama_fixture
"""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import save_file

from tests.nn.transformers_reference import (
    CONFIGURATIONS,
    MIXTURES,
    draw_tokens,
    evaluate,
    float64_throughout,
    make_model,
)

DATA = Path(__file__).parent


def main() -> None:
    tokens, targets = draw_tokens()
    models = [(DATA / "llama", name, configuration) for name, configuration in CONFIGURATIONS.items()]
    models += [(DATA / "mixtral", name, configuration) for name, configuration in MIXTURES.items()]
    for seed, (folder, name, configuration) in enumerate(models):
        with float64_throughout():
            model = make_model(configuration, seed)
            expected = evaluate(model, tokens, targets)
        in_parts = name == "grouped_query"
        model.save_pretrained(folder / name, max_shard_size="3KB" if in_parts else "1GB")
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        save_file({"tokens": tokens, "targets": targets, **expected}, folder / name / "expected.safetensors")


if __name__ == "__main__":
    main()
