"""What a hostile world does to a run: kills, full disks, planted checkpoints, nonsense on the command line, noise."""

import ctypes
import json
import os
import pickle
import random
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS

from mt.command import command, refusal
from mt.data.corpus import prepare
from mt.data.readers import Source, Unreadable
from mt.runs import run_folder
from mt.training.checkpoints import Checkpoint, WholeFiles, load_to_resume
from mt.translator import Translator

ROOT = Path(__file__).parents[1]
Script = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every wrong kind."""
    folder = tmp_path_factory.mktemp("file guasti è")
    pairs = "".join(f"{a}\t{b}\n" for a, b in PAIRS)
    for name, content in {
        "in.tsv": b"a\tb\n",
        "two.txt": b"a\nb\n",
        "empty.txt": b"",
        "empty.tsv": b"",
        "blank.txt": b"\n",
        "latin1.txt": b"caf\xe9\n",
        "latin1.tsv": b"caf\xe9\tb\n",
        "bad.tsv.gz": b"\x1f\x8bxxxx",
        "bad.parquet": b"PAR1",
        "quote.csv": b'"a\n',
        "header.csv": b"english,german\na,b\n",
        "bad.jsonl": b"{\n",
        "list.json": b'[{"en": "a", "it": "b"}]',
        "one.tsv": b"Hi\tCiao\n",
        "same.tsv": b"Hi\tCiao\n" * 9,
        "equal.tsv": b"Hi\tHi\n" * 9,
        "three.tsv": b"a\tb\tc\n",
        "pairs.tsv": pairs.encode(),
        "endless.txt": b"a\n" + b"a" * 4_000_001,
        "wide.tsv": ("a" * 1_000_000 + "\tb\n").encode(),
    }.items():
        (folder / name).write_bytes(content)
    for name in ("folder.png", "folder.html"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def script(folder: Path) -> Iterator[Script]:
    """Runs a script of the repository in the folder, in a fork of a process that has imported everything."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/forks.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert server.stdin is not None and server.stdout is not None

    def call(command: str, given: bytes = b"") -> tuple[int, str, str]:
        print(json.dumps([str(folder), shlex.split(command), given.decode("latin-1")]), file=server.stdin, flush=True)
        return tuple(json.loads(server.stdout.readline()))

    yield call
    server.stdin.close()
    assert server.wait(30) == 0


TRANSLATE = [
    ("--checkpoint nowhere.ckpt Hello", 1, "no checkpoint at nowhere.ckpt"),
    ("--checkpoint . Hello", 1, "no checkpoint at best.ckpt"),
    ("--checkpoint in.tsv Hello", 1, "in.tsv: not a checkpoint"),
    ("--checkpoint '' Hello", 1, "no checkpoint at best.ckpt"),
    ("--beam 0 Hello", 1, "beam=0"),
    ("--beam two Hello", 2, "'two'"),
    ("--beam 65 Hello", 1, "beam=65"),
    ("--input endless.txt", 1, "endless.txt:2: a line of more than 4000000 bytes"),
    ("--nbest 9 --beam 2 Hello", 1, "nbest=9"),
    ("--nbest 0 Hello", 1, "nbest=0"),
    ("--length-penalty -1 Hello", 1, "length_penalty=-1"),
    ("--length-penalty nan Hello", 1, "length_penalty=nan"),
    ("--length-penalty 1e400 Hello", 1, "length_penalty=inf"),
    ("--max-length 0 Hello", 1, "max_length=0"),
    ("--max-length 99999999999999999999 Hello", 1, "max_length=9999"),
    ("--batch-size 0 Hello", 1, "batch_size=0"),
    ("--attention map.xyz Hello", 1, "map.xyz: a picture's name ends in"),
    ("--attention map Hello", 1, "map: a picture's name ends in"),
    ("--attention folder.png Hello", 1, "folder.png: Is a directory"),
    ("--attention folder.html Hello", 1, "folder.html: Is a directory"),
    ("--attention in.tsv/map.html Hello", 1, "in.tsv/map.html"),
    ("--attention nowhere/map.png Hello", 1, "nowhere/map.png"),
    ("--attention terminal Hello you", 1, "exactly one sentence, not several"),
    ("--attention terminal --input two.txt", 1, "exactly one sentence, not several"),
    ("--attention terminal", 1, "exactly one sentence, not none"),
    ("--input nowhere.txt", 1, "nowhere.txt"),
    ("--input .", 1, ".: Is a directory"),
    ("--input in.tsv Hello", 2, "not both"),
    ("--input in.tsv --output in.tsv", 2, "overwrite"),
    ("--input in.tsv --output nowhere/out.txt", 1, "nowhere/out.txt"),
    ("--input in.tsv --output .", 1, ".: Is a directory"),
    ("--input in.tsv --output /dev/full", 1, "/dev/full: No space left"),
    ("--device quantum Hello", 1, "device quantum"),
    ("--device cuda:99 Hello", 1, "device cuda:99"),
    ("--device meta Hello", 1, "device meta"),
    ("--device '' Hello", 1, "device "),
    ("--quick Hello", 2, "--quick"),
]
EVALUATE = [
    ("", 2, "--src"),
    ("--src in.tsv", 2, "--ref"),
    ("--src nowhere --ref in.tsv", 1, "nowhere"),
    ("--src in.tsv --ref .", 1, ".: Is a directory"),
    ("--src in.tsv --ref two.txt", 1, "in.tsv has 1 lines, two.txt has 2"),
    ("--src in.tsv --ref blank.txt", 1, "blank.txt:1: no reference"),
    ("--src empty.txt --ref empty.txt", 1, "nothing to score"),
    ("--src latin1.txt --ref in.tsv", 1, "latin1.txt:1: not UTF-8"),
    ("--src bad.tsv.gz --ref in.tsv", 1, "bad.tsv.gz"),
    ("--src in.tsv --ref in.tsv --checkpoint nowhere", 1, "nowhere"),
    ("--src in.tsv --ref in.tsv --beam 0", 1, "beam=0"),
    ("--src in.tsv --ref in.tsv --device quantum", 1, "device quantum"),
]
TRAIN = [
    ("data.batch_tokens=abc", "data.batch_tokens='abc'"),
    ("data.one_translation=1", "data.one_translation=1 is neither true nor false"),
    ("data.batch_tokens=3", "data.batch_tokens=3"),
    ("data.joined=0.6", "data.joined=0.6"),
    ("data.noise=2", "data.noise=2"),
    ("data.sampling=-1", "data.sampling=-1"),
    ("data.num_workers=-1", "data.num_workers=-1"),
    ("data.max_ratio=0", "data.max_ratio=0"),
    ("data.held_out=0", "data.held_out=0"),
    ("data.vocab_size=1.5", "data.vocab_size=1.5"),
    ("data.vocab_size=90000", "vocab_size=90000"),
    ("data.vocab_size=10", "vocab_size=10"),
    ("data.src=fr", "'fr'"),
    ("data.tgt=en", "both 'en'"),
    ("data.columns=[en]", "'it'"),
    ("data.columns=[[en],[it]]", "neither a language"),
    ("data.columns=null", "data.columns=None"),
    ("data.cache_dir=null", "data.cache_dir=None"),
    ("data.cache_dir=in.tsv", "in.tsv"),
    ("data.cache_dir=in.tsv/x", "in.tsv"),
    ("+data.foo=1", "foo"),
    ("data=huge", "everyday"),
    ("data=tatoeba", "data=everyday"),
    ("data=files", "data.train"),
    ("data.train=null", "data.train"),
    ("data.train=5", "5 is neither"),
    ("data.train=nowhere.tsv", "nowhere.tsv"),
    ("data.train=.", "no such file"),
    ("'data.train=*.nothing'", "*.nothing"),
    ("data.train=everyday://nothing", "nothing"),
    ("data.train=hf://", "kind of file"),
    ("data.train=blank.txt", "kind of file"),
    ("data.train=empty.tsv", "empty"),
    ("data.train=latin1.tsv", "1 not UTF-8"),
    ("data.train=three.tsv", "1 not 2 columns"),
    ("data.train=equal.tsv", "9 both sides the same"),
    ("data.train=bad.tsv.gz", "bad.tsv.gz"),
    ("data.train=bad.parquet", "bad.parquet"),
    ("data.train=quote.csv", "quote.csv:1"),
    ("data.train=header.csv", "english, german"),
    ("data.train=bad.jsonl", "1 no text"),
    ("data.train=list.json", "1 no text"),
    ("data.train=wide.tsv", "1 too unequal"),
    ("data.train=[in.tsv]", "not 1"),
    ("data.train=[in.tsv,two.txt] data.validation=pairs.tsv data.test=pairs.tsv", "has 1 lines, two.txt has 2"),
    ("data.train=pairs.tsv data.validation=null data.test=null", "data.held_out to at most 25"),
    ("data.train=one.tsv data.validation=null data.test=null", "are too few"),
    ("data.train=same.tsv data.validation=null data.test=null", "are too few"),
    ("data.train=pairs.tsv data.validation=pairs.tsv data.test=pairs.tsv", "stands in test"),
    ("model.num_heads=5", "not divisible by num_heads=5"),
    ("model.d_model=-32", "d_model=-32 is less than 1"),
    ("model.d_model=", "model.d_model=''"),
    ("model.d_model=33 model.num_heads=3", "odd"),
    ("model.dropout=1.0", "dropout=1.0 is not in"),
    ("model.dropout=half", "model.dropout='half'"),
    ("~model.architecture", "architecture"),
    ("model.d_modell=3", "d_modell"),
    ("+model.rotary=true", "rotary"),
    ("~model.d_ff", "d_ff"),
    ("model.d_ff=0", "d_ff=0 is less than 1"),
    ("model.d_ff=100000000000000", "not enough memory"),
    ("model.encoder_layers=1.5", "model.encoder_layers=1.5"),
    ("model.attention=none", "attention=none"),
    ("model.positions=rotary", "positions=rotary"),
    ("model.architecture=lstm", "architecture=lstm"),
    ("model=recurrent model.num_heads=3", "not divisible by num_heads=3"),
    ("model=recurrent model.d_model=7", "d_model=7 is odd"),
    ("model=recurrent model.d_model=0", "d_model=0 is less than 1"),
    ("model=recurrent model.attention=foo", "or none"),
    ("model=recurrent model.num_heads=two", "model.num_heads='two'"),
    ("model=recurrent +model.d_ff=5", "d_ff"),
    ("model=recurrent ~model.num_heads", "num_heads"),
    ("variant=recurrent_without_attention model.d_model=9", "d_model=9 is odd"),
    ("model=huge", "tiny"),
    ("model=null", "NoneType"),
    ("'model.d_model=['", "'['"),
    ("experiment=nowhere", "tatoeba"),
    ("embedding_start=near", "embedding_start=near is none of latent_semantics, random"),
    ("embedding_start=null", "embedding_start=None"),
    ("~embedding_start", "embedding_start is missing"),
    ("optimizer.learning_rate=-1", "optimizer.learning_rate=-1"),
    ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan"),
    ("optimizer.beta2=1.0", "optimizer.beta2=1.0"),
    ("+optimizer.lr=1", "optimizer.lr"),
    ("decoding.beam=0", "beam=0"),
    ("decoding.beam=abc", "decoding.beam='abc'"),
    ("decoding.beam=2.5", "decoding.beam=2.5"),
    ("decoding.beam=65", "beam=65"),
    ("decoding.length_penalty=99", "length_penalty=99"),
    ("decoding.length_penalty=", "decoding.length_penalty=''"),
    ("+decoding.width=3", "width"),
    ("precision=foo", "foo"),
    ("precision=16-mixed trainer.accelerator=cpu", "precision=16-mixed is for GPUs: a processor has bf16-mixed"),
    ("trainer.accelerator=quantum", "quantum"),
    ("trainer.devices=0", "devices=0"),
    ("trainer.max_time=soon", "soon"),
    ("trainer.max_time=00:00:00:00", "trainer.max_time=00:00:00:00"),
    ("~trainer.max_time", "trainer.max_time is missing"),
    ("trainer.max_time=null trainer.max_steps=-1", "none of trainer.max_time, trainer.max_epochs, trainer.max_steps"),
    ("+trainer.limit_val_batches=0", "trainer.limit_val_batches=0"),
    ("+trainer.fast_dev_run=true", "trainer.fast_dev_run"),
    ("trainer.max_steps=abc", "trainer.max_steps='abc'"),
    ("trainer.max_steps=0", "trainer.max_steps=0"),
    ("trainer.accumulate_grad_batches=0", "trainer.accumulate_grad_batches=0"),
    ("trainer.val_check_interval=0", "trainer.val_check_interval=0"),
    ("trainer.gradient_clip_val=-1", "trainer.gradient_clip_val=-1"),
    ("+trainer.gradient_clip_algorithm=value", "trainer.gradient_clip_algorithm=value is not norm"),
    ("~trainer.gradient_clip_val", "trainer.gradient_clip_val is missing"),
    ("~trainer.val_check_interval", "trainer.val_check_interval is missing"),
    ("~decoding", "decoding is missing"),
    ("data=files 'data.train=[in.tsv,in.tsv]' 'data.columns=[de,en,it]'", "data.columns names de, en, it"),
    ("decoding=null", "decoding=None"),
    ("+trainer.foo=1", "foo"),
    ("callbacks.checkpoint=null", "callbacks.checkpoint"),
    ("callbacks.checkpoint.monitor=val/bluff", "train.py: monitor=val/bluff is none of val/loss, "),
    ("callbacks=early_stopping callbacks.early_stopping.monitor=val/bluff", "train.py: monitor=val/bluff is none of "),
    ("callbacks.translations.num_scored=0", "num_scored=0"),
    ("+callbacks.foo._target_=os.getcwd", "callbacks.foo"),
    ("seed=-1", "seed=-1"),
    ("resume=nowhere", "nowhere"),
    ("resume=in.tsv", "in.tsv: not a checkpoint"),
    ("hydra.run.dir=in.tsv/x", "in.tsv/x"),
    ("d_model", "d_model"),
]
QUICK = "precision=32-true data.held_out=1000 data.cache_dir=cache"  # before what is tried: the later one counts


def one_line(result: tuple[int, str, str], code: int, expected: str) -> None:
    found, _, said = result
    *usage, last = [line for line in said.splitlines() if not line.startswith("checkpoint ")]
    assert found == code, said
    assert expected in last
    assert "Traceback" not in said
    assert code == 2 or not usage  # argparse says how to use it first


@pytest.mark.parametrize(("arguments", "code", "expected"), TRANSLATE)
def test_nonsense_for_translate_is_one_line(
    script: Script, folder: Path, checkpoint: Path, arguments: str, code: int, expected: str
) -> None:
    given = "" if "--checkpoint" in arguments else f"--checkpoint '{checkpoint}'"
    result = script(f"scripts/translate.py {given} {arguments}")
    one_line(result, code, expected)
    assert not result[1]  # before anything is translated


@pytest.mark.parametrize(("arguments", "code", "expected"), EVALUATE)
def test_nonsense_for_evaluate_is_one_line(
    script: Script, checkpoint: Path, arguments: str, code: int, expected: str
) -> None:
    given = "" if "--checkpoint" in arguments else f"--checkpoint '{checkpoint}'"
    one_line(script(f"scripts/evaluate.py {given} {arguments}"), code, expected)


@pytest.mark.parametrize(("arguments", "expected"), TRAIN)
def test_nonsense_for_train_is_one_line_before_any_training(script: Script, arguments: str, expected: str) -> None:
    own = ("experiment=", "data=files", "recurrent")  # smoke's sizes are a transformer's
    experiment = "" if any(name in arguments for name in own) else "experiment=smoke"
    one_line(
        script(f"scripts/train.py {experiment} {QUICK if 'cache' not in arguments else ''} {arguments}"), 1, expected
    )


def test_a_failing_job_of_a_sweep_says_so_and_the_others_go_on(script: Script) -> None:
    code, _, said = script(f"scripts/train.py -m experiment=smoke {QUICK} model.num_heads=5,7")
    assert code == 1 and "Traceback" not in said
    for n in (5, 7):
        told = [line for line in said.splitlines() if f"model.num_heads={n}," in line]
        assert len(told) == 1 and told[0].endswith(f"train.py: d_model=32 is not divisible by num_heads={n}")


def test_two_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [run_folder(None) for _ in range(4)]
    assert len(set(folders)) == 4 and all(Path(folder).is_dir() for folder in folders)


@contextmanager
def full_disk() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_the_previous_checkpoint_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    WholeFiles().save_checkpoint({"step": 1}, path)
    with full_disk(), pytest.raises(OSError, match=r"last\.ckpt can't be written"):
        WholeFiles().save_checkpoint({"step": 2, "weights": torch.ones(100_000)}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_new_checkpoint_takes_the_place_of_the_old_one_and_is_not_written_into_it(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    WholeFiles().save_checkpoint({"step": 1}, path)
    whole = path.read_bytes()
    with path.open("rb") as old:
        WholeFiles().save_checkpoint({"step": 2}, path)
        assert old.read() == whole
    assert torch.load(path, weights_only=True) == {"step": 2}


def test_a_full_disk_under_the_cache_is_named_and_nothing_half_prepared_stays(tmp_path: Path) -> None:
    sentences = "".join(f"{i} {a}\t{i} {b}\n" for i, (a, b) in enumerate(PAIRS * 4))
    (tmp_path / "pairs.tsv").write_text(sentences, encoding="utf-8")
    options = {"columns": ["en", "it"], "src": "en", "tgt": "it", "max_pieces": 60, "max_ratio": 3.0, "held_out": 9}
    with full_disk(), pytest.raises(OSError) as error:
        prepare(
            train=str(tmp_path / "pairs.tsv"), validation=None, test=None, vocab_size=400,
            cache_dir=str(tmp_path / "cache"), **options,
        )  # fmt: skip
    assert str(tmp_path / "cache") in refusal(error.value) and "\n" not in refusal(error.value)
    assert not list((tmp_path / "cache").iterdir())


def test_too_little_memory_is_one_line_in_every_command() -> None:
    with pytest.raises(SystemExit, match="not enough memory") as ended, command():
        torch.empty(10**17)
    assert "\n" not in str(ended.value)


def test_compiled_products_are_bounded_unless_the_user_has_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(name, raising=False)
    with command():
        assert int(os.environ[name]) < 1024  # oneDNN's own
    monkeypatch.setenv(name, "7")
    with command():
        assert os.environ[name] == "7"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc's, since 2.33")
def test_memory_that_is_freed_stays_with_the_process() -> None:
    """Asked of glibc itself: what it has mapped outside of its heap, and the heap's size."""
    asking = """
import ctypes, sys
from mt.command import arrange_memory
if sys.argv[1] == "arranged":
    arrange_memory()
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
mapped = libc.mallinfo2().hblkhd
blocks = [libc.malloc(2**24) for _ in range(12)]
with_blocks = libc.mallinfo2()
for block in reversed(blocks):
    libc.free(block)
print(with_blocks.hblkhd - mapped, with_blocks.arena, libc.mallinfo2().arena)
"""
    arranged, unarranged = (
        list(map(int, subprocess.check_output([sys.executable, "-c", asking, how]).split()))
        for how in ("arranged", "as it is")
    )
    mapped, heap, heap_afterwards = arranged
    assert mapped == 0 and heap_afterwards == heap > 12 * 2**24
    assert unarranged[0] > 0  # goes back to the system as soon as it is freed


def test_a_moved_run_keeps_its_best_score(tmp_path: Path) -> None:
    old, new = (Checkpoint(dirpath=tmp_path / name, filename="best", monitor="val/chrf") for name in ("old", "new"))
    best = str(tmp_path / "old/best.ckpt")
    old.best_model_score, old.best_model_path, old.kth_best_model_path = torch.tensor(7.0), best, best
    old.best_k_models = {best: torch.tensor(7.0)}
    (tmp_path / "new").mkdir()
    (tmp_path / "new/best.ckpt").touch()
    new.load_state_dict(old.state_dict())
    assert new.best_model_score == 7 and new.best_model_path == str(tmp_path / "new/best.ckpt")
    assert list(new.best_k_models) == [new.best_model_path]


class Payload:
    def __init__(self, planted: Path) -> None:
        self.planted = planted

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.planted}'",)


def planted(content: dict[str, Any], path: Path, mark: Path, kind: str) -> None:
    """Write a checkpoint of one kind of malice, or none that is recognised."""
    weights = content["state_dict"]
    first, other = "model.embedding.token.weight", "model.encoder.norm.weight"
    if kind == "a pickle":
        path.write_bytes(pickle.dumps(Payload(mark)))
        return
    changes: dict[str, Callable[[], object]] = {
        "a payload as a weight": lambda: weights.update({first: Payload(mark)}),
        "a payload as the model's arguments": lambda: content["mt"].update(model=Payload(mark)),
        "a payload as the tokenizer": lambda: content["mt"].update(tokenizer=Payload(mark)),
        "a payload beside all": lambda: content.update(more=Payload(mark)),
        "a payload as the optimizer": lambda: content.update(optimizer_states=[Payload(mark)]),
        "a whole module": lambda: weights.update({first: torch.nn.Linear(2, 2)}),
        "swapped tensors": lambda: weights.update({first: weights[other], other: weights[first]}),
        "a tensor of text": lambda: weights.update({first: "weights"}),
        "a list for the state": lambda: content.update(state_dict=list(weights.values())),
        "an enormous model": lambda: content["mt"]["model"].update(d_model=2**40),
        "a half tokenizer": lambda: content["mt"].update(tokenizer=content["mt"]["tokenizer"][:100]),
        "a negative beam": lambda: content["mt"].update(decoding={"beam": -1, "length_penalty": "x"}),
        "truncated": lambda: None,
    }
    changes[kind]()
    torch.save(content, path)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-2_000])


@pytest.mark.parametrize(
    "kind",
    ["a pickle", "a payload as a weight", "a payload as the model's arguments", "a payload as the tokenizer",
     "a payload beside all", "a payload as the optimizer", "a whole module", "swapped tensors", "a tensor of text",
     "a list for the state", "an enormous model", "a half tokenizer", "a negative beam", "truncated"],
)  # fmt: skip
def test_a_planted_checkpoint_is_refused_in_a_line_and_nothing_of_it_runs(
    checkpoint: Path, tmp_path: Path, kind: str
) -> None:
    mark = tmp_path / "executed"
    planted(torch.load(checkpoint, weights_only=True), checkpoint, mark, kind)
    for load in (Translator.load, load_to_resume):
        with pytest.raises(ValueError, match=r"best\.ckpt") as error:
            load(checkpoint)
        assert "\n" not in str(error.value)
    assert not mark.exists()


def noise(chance: random.Random) -> bytes:
    """A line that no editor would write: random bytes, broken UTF-8, control characters, rare scripts, half a pair."""
    pieces = [
        b"\t",
        b'"',
        b"\r",
        b"\x00",
        b"\xff",
        b"\xe2\x80\xa8",
        b"\xf0\x9f\x98\x80",
        b"{",
        b"e\xcc\x81",
        b"\xd7\xa9",
    ]
    kind = chance.randrange(3)
    if kind == 0:
        line = chance.randbytes(chance.randrange(40))
    elif kind == 1:
        line = b"".join(chance.choices(pieces, k=chance.randrange(20)))
    else:
        line = "\t".join(chance.choice(PAIRS)).encode()[: chance.randrange(60)] + chance.choice(pieces)
    return line.replace(b"\n", b"")


def read_noise(folder: Path, lines: int, seed: int) -> None:
    chance = random.Random(seed)
    content = [noise(chance) for _ in range(lines)]
    for kind in ("tsv", "jsonl"):
        path = folder / f"noise.{kind}"
        path.write_bytes(b"".join(line + b"\n" for line in content))
        rows = list(Source.parse(str(path)).rows({"en": "en", "it": "it"}))
        assert len(rows) == lines
        assert all(isinstance(row, Unreadable) or len(row) == 2 for row in rows)
    (folder / "noise.csv").write_bytes(b"en,it\n" + b"".join(line + b"\n" for line in content))
    try:
        assert len(list(Source.parse(str(folder / "noise.csv")).rows({"en": "en", "it": "it"}))) <= lines
    except ValueError as error:
        assert "noise.csv" in str(error) and "\n" not in str(error)


def translate_noise(script: Script, checkpoint: Path, lines: int, seed: int) -> None:
    chance = random.Random(seed)
    given = b"".join(noise(chance) + b"\n" for _ in range(lines))
    code, out, said = script(f"scripts/translate.py --checkpoint '{checkpoint}' --beam 1 --max-length 9", given)
    assert (code, out.count("\n")) == (0, lines), said


def test_noise_is_read_line_by_line_and_translated_line_by_line(
    script: Script, checkpoint: Path, tmp_path: Path
) -> None:
    read_noise(tmp_path, 3_000, seed=1)
    translate_noise(script, checkpoint, 300, seed=1)


@pytest.mark.slow
def test_ten_thousand_lines_of_noise_are_read_and_translated(script: Script, checkpoint: Path, tmp_path: Path) -> None:
    read_noise(tmp_path, 10_000, seed=2)
    translate_noise(script, checkpoint, 10_000, seed=2)


def soak(runs: int) -> None:
    command = [sys.executable, str(ROOT / "tests/soak.py"), str(runs)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3_600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same bits") == runs


def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits() -> None:
    soak(2)


@pytest.mark.slow
def test_thirty_runs_that_are_killed_and_resumed_end_with_the_same_bits() -> None:
    soak(30)
