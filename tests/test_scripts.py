"""The command line as people type it, in a folder whose name has spaces and accents; and the README's commands."""

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS, VOCAB_SIZE
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.cells import cell_len

from mt.data.readers import EVERYDAY
from mt.model.build import build_model
from mt.translator import load_checkpoint

ROOT = Path(__file__).parents[1]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def run(folder: Path, *command: str, given: bytes = b"", **more_environment: str) -> subprocess.CompletedProcess[bytes]:
    script, *arguments = command
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=folder,
        input=given,
        capture_output=True,
        env=ONE_THREAD | more_environment,
        timeout=300,
    )


def output(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def refusal(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a failed command says: without a traceback, in one line of its own."""
    message = done.stderr.decode()
    assert done.returncode in (1, 2), message
    assert "Traceback" not in message
    return message


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds runs/ with one finished smoke run."""
    folder = tmp_path_factory.mktemp("più corsi di prova")
    out = output(run(folder, "scripts/train.py", "experiment=smoke", f"data.cache_dir='{folder}/cache'"))
    assert "BLEU" in out and "translate.py --checkpoint" in out
    return folder


def test_a_run_leaves_a_summary_checkpoints_and_events(folder: Path) -> None:
    (summary,) = folder.glob("runs/*/summary.json")
    values = json.loads(summary.read_text())
    assert values["test"]["sentences"] > 0 and "bleu" in values["test"] and "chrf" in values["test"]
    assert "tok:13a" in values["test"]["signature"]["bleu"]
    assert values["parameters"] > 0 and values["tokens_per_second"] > 0 and values["steps"] == 6
    assert 0 < values["epochs"] < 0.5, "six batches of more than a hundred"
    assert Path(values["checkpoint"]).is_file() and (summary.parent / "last.ckpt").is_file()


def test_tensorboard_gets_scalars_translations_pictures_and_hyperparameters(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    (run_folder,) = folder.glob("runs/*")
    events = EventAccumulator(str(run_folder), size_guidance={"images": 0, "tensors": 0}).Reload()
    scalars = set(events.Tags()["scalars"])
    assert {
        "train/loss",
        "train/nll",
        "train/learning_rate",
        "train/gradient_norm",
        "train/tokens_per_second",
    } <= scalars
    assert {"val/loss", "val/perplexity", "val/chrf", "val/bleu", "test/bleu", "test/chrf"} <= scalars
    assert {"heads/aer/mean", "heads/aer/layer_1_head_2", "heads/entropy/layer_1_head_1"} <= scalars
    images = events.Tags()["images"]
    kinds = ("encoder.layers.0.self_attention", "decoder.layers.0.self_attention", "decoder.layers.0.cross_attention")
    for kind in kinds:
        assert [image.step for image in events.Images(f"attention/0/{kind}")] == [3, 6]
    assert len(images) == 2 * len(kinds)
    assert [text.step for text in events.Tensors("translations/text_summary")] == [3, 6]
    start = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = OmegaConf.load(run_folder / ".hydra" / "config.yaml")
    groups = {f"{group}/{name}" for group in ("data", "model", "optimizer", "decoding") for name in settings[group]}
    assert set(HParamsPluginData.FromString(start).session_start_info.hparams) == groups | {"seed", "embedding_start"}


def test_the_best_checkpoint_is_that_of_the_least_validation_loss(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run_folder,) = folder.glob("runs/*")
    losses = EventAccumulator(str(run_folder)).Reload().Scalars("val/loss")
    assert len(losses) == 2
    assert load_checkpoint(run_folder / "best.ckpt")["global_step"] == min(losses, key=lambda loss: loss.value).step


def test_a_metric_brings_its_mode_and_early_stopping_follows_the_checkpoint() -> None:
    def callbacks(*settings: str) -> list[Any]:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            found = compose("train", ["callbacks=early_stopping", *settings]).callbacks
        found.checkpoint.dirpath = None
        return [instantiate(found.checkpoint), instantiate(found.early_stopping)]

    for settings, expected in (
        ([], [("val/loss", "min"), ("val/loss", "min")]),
        (["callbacks.checkpoint.monitor=val/chrf"], [("val/chrf", "max"), ("val/chrf", "max")]),
        (["callbacks.early_stopping.monitor=val/bleu"], [("val/loss", "min"), ("val/bleu", "max")]),
    ):
        assert [(callback.monitor, callback.mode) for callback in callbacks(*settings)] == expected


def test_every_way_of_giving_sentences_gives_the_same_translations(folder: Path) -> None:
    sentences = ["Where is the station?", "", "A cat, a dog; 😀!", "   ", "Good\u2028morning."]
    text = "".join(f"{s}\n" for s in sentences)
    (folder / "in.txt").write_text(text, encoding="utf-8")
    by_argument = output(run(folder, "scripts/translate.py", *sentences)).split("\n")
    by_stdin = output(run(folder, "scripts/translate.py", given=text.encode(), PYTHONIOENCODING="ascii")).split("\n")
    run(folder, "scripts/translate.py", "--input", "in.txt", "--output", "out.txt", "--batch-size", "1")
    assert by_argument == by_stdin == (folder / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(by_argument) == len(sentences) + 1 and by_argument[1] == by_argument[3] == ""


def test_lines_in_are_lines_out_whatever_is_in_them(folder: Path) -> None:
    given = b"caf\xe9\r\n\n\x00\x07\n\xff\xfe\nlast without newline"
    assert output(run(folder, "scripts/translate.py", "--beam", "1", given=given)).count("\n") == 5


def test_json_lines_hold_source_translation_score_and_nbest(folder: Path) -> None:
    out = output(run(folder, "scripts/translate.py", "--json", "--nbest", "3", "--beam", "4", "Good morning.", ""))
    first, blank = (json.loads(line) for line in out.splitlines())
    assert first["source"] == "Good morning." and len(first["nbest"]) == 3
    scores = [hypothesis["score"] for hypothesis in first["nbest"]]
    assert scores == sorted(scores, reverse=True) and first["score"] == scores[0]
    assert isinstance(first["cut"], bool) and blank["translation"] == ""


def test_attention_is_shown_in_the_terminal_and_as_a_picture(folder: Path) -> None:
    assert "</s>" in output(run(folder, "scripts/translate.py", "--attention", "terminal", "Good morning."))
    output(run(folder, "scripts/translate.py", "--attention", "map.png", "Good morning."))
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")


def test_attention_and_its_film_are_shown_as_pages(folder: Path) -> None:
    output(run(folder, "scripts/translate.py", "--attention", "map.html", "Good morning."))
    assert "Good morning." in (folder / "map.html").read_text(encoding="utf-8")
    (page,) = output(run(folder, "scripts/attention_page.py")).splitlines()
    assert '"step": 3' in (folder / page).read_text(encoding="utf-8")
    assert "no film" in refusal(run(folder, "scripts/attention_page.py", "."))


def test_a_translation_is_explained_on_the_terminal_and_as_json(folder: Path) -> None:
    out = output(run(folder, "scripts/translate.py", "--explain", "--max-length", "4", "Good morning.", ""))
    assert "looked at" in out and "or else" in out and "cut at 4 pieces" in out and "blank" in out
    out = output(run(folder, "scripts/translate.py", "--explain", "--json", "--max-length", "4", "Good morning."))
    explanation = json.loads(out)["explanation"]
    assert explanation["words"][-1]["word"] == "</s>" and "cut" in explanation["ending"]
    assert set(explanation["words"][0]) == {"word", "probability", "sources", "alternatives"}


def test_heads_are_scored_as_a_table_as_json_and_as_a_picture(folder: Path) -> None:
    out = output(run(folder, "scripts/inspect_heads.py", "--json", "--figure", "heads.svg"))
    found = json.loads(out)
    measures = {"layer", "head", "aer", "entropy", "eos_share", "diagonality", "chrf_drop"}
    assert [set(head) for head in found["heads"]] == [measures] * 2
    assert found["best_aer"] == min(head["aer"] for head in found["heads"])
    assert 0.1 < found["baseline_aer"] < 0.4 and 0 <= found["mean_aer"] <= 1
    assert "<svg" in (folder / "heads.svg").read_text(encoding="utf-8")


def test_evaluate_scores_files_with_several_references(folder: Path) -> None:
    (folder / "src.txt").write_text("Good morning.\nThank you.\n", encoding="utf-8")
    (folder / "ref.txt").write_text("Buongiorno.\tBuon giorno.\nGrazie.\n", encoding="utf-8")
    out = output(run(folder, "scripts/evaluate.py", "--src", "src.txt", "--ref", "ref.txt", "--beam", "1", "--json"))
    scores = json.loads(out)
    assert scores["sentences"] == 2 and "nrefs:var" in scores["bleu_signature"]
    (folder / "ref.txt").write_text("Buongiorno.\n", encoding="utf-8")
    message = refusal(run(folder, "scripts/evaluate.py", "--src", "src.txt", "--ref", "ref.txt"))
    assert "2 lines" in message and "1" in message


def assert_measured(results: dict[str, dict[str, float]]) -> None:
    for name in (
        "training.ratio",
        "training.bound_fraction",
        "input.share_of_step",
        "decoding.greedy_ratio",
        "decoding.beam4_cost",
        "decoding.single_per_second",
        "startup.ratio",
        "memory.peak_mib",
    ):
        part, value = name.split(".")
        assert results[part][value] > 0, name
    assert 0 <= results["input"]["padding"] < 0.3
    assert results["decoding"]["identical"] == 1


VARIANTS = sorted(path.stem for path in (ROOT / "conf" / "variant").glob("*.yaml"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_a_model_and_differs_from_the_default_in_one_thing(variant: str) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        configs = [compose("train", [f"variant={name}"]) for name in ("default", variant)]
    default, other = ({**cfg.model, "embedding_start": cfg.embedding_start} for cfg in configs)
    with torch.device("meta"):
        build_model(vocab_size=400, **configs[1].model)
    if other["architecture"] == "transformer":
        assert len(default.items() - other.items()) == (variant != "default")


@pytest.mark.parametrize("experiment", ["everyday", "tatoeba", "overnight", "smoke"])
def test_a_variant_is_what_it_is_in_every_experiment(experiment: str) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for variant, architecture, attention in (
            ("recurrent_without_attention", "recurrent", "none"),
            ("additive", "transformer", "additive"),
        ):
            model = compose("train", [f"experiment={experiment}", f"variant={variant}"]).model
            assert (model.architecture, model.attention) == (architecture, attention)
        assert compose("train", [f"experiment={experiment}", "variant=heads_8"]).model.num_heads == 8


def test_help_names_choices_that_there_are(folder: Path) -> None:
    choices = re.findall(r"^(\w+)= +(.+)$", output(run(folder, "scripts/train.py", "--help")), re.MULTILINE)
    assert {group for group, _ in choices} == {"data", "model", "variant", "experiment", "callbacks"}
    for group, names in choices:
        named = re.sub(r"\(.*?\)|\.\.\.", "", names).rpartition(": ")[2]
        for name in filter(None, map(str.strip, named.split(","))):
            assert (ROOT / "conf" / group / f"{name}.yaml").is_file(), (group, name)


def test_a_folder_that_holds_a_run_is_not_trained_into(folder: Path) -> None:
    (old,) = folder.glob("runs/*")
    before = (old / "best.ckpt").read_bytes()
    command = ("scripts/train.py", "experiment=smoke", f"data.cache_dir='{folder}/cache'", f"hydra.run.dir='{old}'")
    assert f"{old} holds a run: resume={old} goes on with it" in refusal(run(folder, *command))
    assert (old / "best.ckpt").read_bytes() == before


def test_a_resumed_run_keeps_its_precision_however_a_new_measurement_comes_out(folder: Path, tmp_path: Path) -> None:
    (old,) = folder.glob("runs/*/last.ckpt")
    state = torch.load(old, weights_only=True)
    other = "bf16-mixed" if state["precision"] == "32-true" else "32-true"
    torch.save(state | {"precision": other}, tmp_path / "last.ckpt")
    command = ("experiment=smoke", f"data.cache_dir='{folder}/cache'", f"resume={tmp_path}", "trainer.max_steps=9")
    output(run(folder, "scripts/train.py", *command))
    assert json.loads((tmp_path / "summary.json").read_text())["precision"] == other


def test_a_run_is_not_resumed_with_another_metric_for_its_best_checkpoint(folder: Path) -> None:
    (old,) = folder.glob("runs/*")
    before = (old / "best.ckpt").read_bytes()
    command = ("experiment=smoke", f"data.cache_dir='{folder}/cache'", f"resume='{old}'", "trainer.max_steps=9")
    said = refusal(run(folder, "scripts/train.py", *command, "callbacks.checkpoint.monitor=val/chrf"))
    assert "can't resume: callbacks.checkpoint.monitor: checkpoint val/loss, this run val/chrf" in said
    assert (old / "best.ckpt").read_bytes() == before


def test_what_can_not_be_measured_is_said_in_a_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "few.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    few = f"--data few.tsv data.vocab_size={VOCAB_SIZE} data.held_out=5 data.batch_tokens=4096 data.cache_dir=cache"
    for arguments, message in (
        ("model=recurrent", "model.architecture=recurrent"),
        ("model=tiny model.attention=additive", "attention=additive"),
        ("precision=16-mixed", "precision=16-mixed is for GPUs"),
        (f"{few} model=tiny", "is too short to measure"),
    ):
        said = refusal(run(tmp_path, "scripts/benchmark.py", "--quick", *arguments.split()))
        assert message in said and said.count("\n") == 1


def test_the_walkthrough_fits_its_width_and_is_a_page_too(folder: Path, tmp_path: Path) -> None:
    for columns in ("80", "120"):
        for checkpoint in ([], ["--checkpoint"]):
            command = ("scripts/walkthrough.py", "The red house is very big and has a garden.", *checkpoint)
            lines = output(run(folder, *command, COLUMNS=columns)).splitlines()
            assert max(map(cell_len, lines)) <= int(columns)
            titles = [line.split()[0] for line in lines if line.endswith("──")]
            assert titles == ["Before", *map(str, range(1, 13 if checkpoint else 12))]
    page = tmp_path / "più.html"
    assert output(run(folder, "scripts/walkthrough.py", "--html", str(page))) == ""
    assert "Attention, step by step" in page.read_text(encoding="utf-8")
    for wrong, message in (
        (["  "], "the sentence is empty"),
        (["--checkpoint", "nowhere"], "no checkpoint at nowhere"),
    ):
        assert message in refusal(run(folder, "scripts/walkthrough.py", *wrong))


def readme_commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition("  #")[0] for line in lines if line.startswith("python scripts/")]


SMALL = [
    "model.d_model=12",
    "model.d_ff=16",
    "data.vocab_size=400",
    "data.held_out=20",
    "trainer.max_steps=2",
    "trainer.val_check_interval=2",
    "callbacks.translations.num_scored=3",
    "callbacks.attention.num_sentences=1",
]


@pytest.fixture(scope="session")
def users_files(folder: Path) -> Path:
    """Whatever the README's commands read."""
    pairs = [line.split("\t") for line in (EVERYDAY / "test.tsv").read_text(encoding="utf-8").splitlines()]
    tsv = "".join(f"{en}\t{it}\n" for en, it in pairs)
    held_out = "".join(f"Number {i} of these.\tIl numero {i} di questi.\n" for i in range(20))
    (folder / "validation.tsv").write_text(held_out, encoding="utf-8")
    (folder / "test.tsv").write_text(held_out.replace("umber", "othing").replace("umero", "iente"), encoding="utf-8")
    (folder / "train.tsv.gz").write_bytes(gzip.compress(tsv.encode()))
    for name in ("validation", "test"):
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress((folder / f"{name}.tsv").read_bytes()))
    (folder / "english-german.tsv").write_text(tsv, encoding="utf-8")
    languages = {"en": 0, "it": 1}
    for name in ("corpus.en", "corpus.it", "test.en", "test.it", "two.en", "two.it", "english.txt"):
        side = languages.get(name[-2:], 0)
        count = 500 if name.startswith("corpus") else 3
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs[:count]), encoding="utf-8")
    records = [json.dumps({"translation": {"en": en, "it": it}}) for en, it in pairs]
    (folder / "corpus.jsonl").write_text("\n".join(records), encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", readme_commands())
def test_every_command_of_the_readme_runs(users_files: Path, command: str) -> None:
    """Training in a small size; what needs the hub is composed only."""
    words = shlex.split(command.replace("glob(*)", "default,scaled_dot_product,parameter_free"))[1:]
    if "benchmark.py" in words[0]:
        overrides = ["model=tiny", "data.batch_tokens=256", f"data.cache_dir='{users_files}/cache'"]
        assert_measured(json.loads(output(run(users_files, *words, "--quick", "--json", *overrides))))
    elif "train.py" not in words[0]:
        output(run(users_files, *words))
    elif any(word.startswith("experiment=") for word in words) and "data=files" not in words:
        output(run(users_files, *words, "--cfg", "job"))
    else:
        out = output(run(users_files, *words, *SMALL, f"data.cache_dir='{users_files}/cache'"))
        assert out.count("test sentences") == (3 if "-m" in words else 1)


def test_the_output_is_never_the_input_and_a_missing_input_empties_no_output(folder: Path) -> None:
    file = folder / "precious.txt"
    file.write_bytes(b"Good morning.\n")
    (folder / "link.txt").symlink_to(file)
    for given in (["--input", file.name], ["--output", file.name, "--input", "link.txt"], ["--output", "link.txt"]):
        with file.open("rb") as source, file.open("ab") as target:
            command = [sys.executable, str(ROOT / "scripts/translate.py"), *given]
            done = subprocess.run(command, cwd=folder, stdin=source, stdout=target, stderr=subprocess.PIPE, timeout=300)
        assert "overwrite the input" in refusal(done)
    assert "missing.txt" in refusal(
        run(folder, "scripts/translate.py", "--input", "missing.txt", "--output", file.name)
    )
    assert file.read_bytes() == b"Good morning.\n"


def test_a_blank_line_has_as_many_lines_as_the_others_and_a_byte_order_mark_is_none(folder: Path) -> None:
    given = b"\xef\xbb\xbfHello.\n\nBye \xff.\n"
    done = run(folder, "scripts/translate.py", "--beam", "2", "--nbest", "2", given=given)
    assert output(done).split("\n")[2:4] == ["", ""] and output(done).count("\n") == 6
    assert "line 3 is not UTF-8" in done.stderr.decode()
    assert json.loads(output(run(folder, "scripts/translate.py", "--json", given=given[:10])))["source"] == "Hello."


def test_closed_streams_and_a_reader_that_has_enough_end_a_command_quietly(folder: Path) -> None:
    command = f"{sys.executable} {ROOT}/scripts/translate.py --beam 1 --max-length 2"
    for redirected in ("a >&-", "a 2>&-", "<&-"):
        done = subprocess.run(["bash", "-c", f"{command} {redirected}"], cwd=folder, capture_output=True, timeout=300)
        assert output(done).count("\n") == (redirected == "a 2>&-") and b"Error" not in done.stderr
    many = f"set -o pipefail; yes Hello. | head -2000 | {command} | head -1"
    done = subprocess.run(["bash", "-c", many], cwd=folder, capture_output=True, timeout=300)
    assert done.returncode == 141 and done.stderr.count(b"\n") == 1  # which checkpoint


def test_training_goes_on_where_nobody_reads_its_output_any_more(folder: Path) -> None:
    smoke = f"experiment=smoke trainer.max_steps=2 trainer.val_check_interval=1 'data.cache_dir=\"{folder}/cache\"'"
    command = f"{sys.executable} {ROOT}/scripts/train.py {smoke} hydra.run.dir=unread"
    done = subprocess.run(["bash", "-c", f"{command} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"], cwd=folder, timeout=300)
    assert done.returncode == 0 and (folder / "unread/summary.json").is_file()


def test_output_is_utf8_where_the_locale_is_ascii(folder: Path) -> None:
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "Perché" in output(run(folder, "scripts/walkthrough.py", "Perché?", **ascii_locale))


def test_square_brackets_in_a_sentence_are_only_characters(folder: Path) -> None:
    assert "[/] house [red]" in output(run(folder, "scripts/walkthrough.py", "[/] house [red]"))
