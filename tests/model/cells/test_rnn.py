"""LSTM, Seq2Seq and TreeLSTM against their definitions, and what describes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minifuse.core.cell_graph import CellGraph, Node, Output, Zeros
from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.request import Request
from minifuse.model.cells.config import CellConfig, register_cells
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.rnn import LSTM, Decoder, Internal, Leaf
from minifuse.model.cells.source import CellSource, resolve_cells
from minifuse.model.cells.trees import read_tree, unfold_tree
from minifuse.naive.cells import answer, evaluate

EXACT = {"rtol": 0.0, "atol": 1e-12}


def made(text: str, dtype: str = "float64", seed: int = 0) -> CellModel:
    source = resolve_cells(text)
    assert source is not None
    return source.load(dtype, seed=seed)


def bend(module: nn.Module) -> None:
    """Give it biases other than zero, so that a lost or swapped one is noticed."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def by_torch(cell: LSTM) -> nn.LSTM:
    """torch's LSTM with the same weights."""
    hidden = cell.gates.weight.shape[0] // 4
    theirs = nn.LSTM(hidden, hidden, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(cell.gates.weight[:, :hidden])
        theirs.weight_hh_l0.copy_(cell.gates.weight[:, hidden:])
        assert cell.gates.bias is not None
        theirs.bias_ih_l0.copy_(cell.gates.bias)
        theirs.bias_hh_l0.zero_()
    return theirs.requires_grad_(False)


def test_the_lstm_agrees_with_torch() -> None:
    model = made("lstm:hidden=12,vocab=30")
    cell = model.cells["lstm"]
    assert isinstance(cell, LSTM)
    bend(cell)
    words = (4, 29, 0, 17, 4)
    outputs = evaluate(model, model.unfold(Request("r0", words)))
    theirs, (h, c) = by_torch(cell)(cell.embedding(torch.tensor(words)).unsqueeze(1))
    for step in range(len(words)):
        torch.testing.assert_close(outputs[step][0], theirs[step, 0], **EXACT)
    torch.testing.assert_close(outputs[4][0], h[0, 0], **EXACT)
    torch.testing.assert_close(outputs[4][1], c[0, 0], **EXACT)


def translated(model: CellModel, request: Request) -> list[int]:
    """Seq2Seq by hand: torch's LSTM cells, a product and an argmax, one step after the other."""
    encoder, decoder = model.cells["encoder"], model.cells["decoder"]
    assert isinstance(encoder, LSTM)
    assert isinstance(decoder, Decoder)

    def step(cell: LSTM, word: int, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        theirs, ours = nn.LSTMCell(12, 12, dtype=torch.float64), by_torch(cell)
        theirs.load_state_dict({name.removesuffix("_l0"): weight for name, weight in ours.state_dict().items()})
        h, c = theirs(cell.embedding(torch.tensor([word])), state)
        return h, c

    state = (torch.zeros(1, 12).double(), torch.zeros(1, 12).double())
    for word in request.prompt:
        state = step(encoder, word, state)
    produced, word = [], 1
    while len(produced) < request.max_new_tokens and not (word == 2 and not request.ignore_eos):
        state = step(decoder.lstm, word, state)
        word = int((decoder.projection.weight @ state[0][0]).argmax())
        produced.append(word)
    return produced


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_seq2seq_agrees_with_its_definition(ignore_eos: bool) -> None:
    model = made("seq2seq:hidden=12,vocab=40", seed=4)
    for cell in model.cells.values():
        bend(cell)
    decoder = model.cells["decoder"]
    assert isinstance(decoder, Decoder)
    decoder.projection.weight[2] *= 1.5  # <eos> more often
    ended = 0
    for first in range(3, 23):
        request = Request(f"r{first}", (first, 5, 8), max_new_tokens=30, stop_ids=(2,), ignore_eos=ignore_eos)
        expected = translated(model, request)
        assert answer(model, request) == expected
        ended += len(expected) < 30
    assert ended == 0 if ignore_eos else 0 < ended < 20


def test_a_random_seq2seq_produces_varied_words_and_sometimes_eos() -> None:
    model = made("seq2seq:hidden=64,vocab=500", "float32")
    produced: list[int] = []
    h, c = torch.zeros(50, 64), torch.zeros(50, 64)
    h, c = model.run("encoder", torch.arange(3, 53), h, c)
    word = torch.ones(50, dtype=torch.int64)
    for _ in range(40):
        h, c, word = model.run("decoder", word, h, c)
        produced += word.tolist()
    assert not {0, 1} & set(produced)
    assert len(set(produced)) > 250
    assert 0.008 < produced.count(2) / len(produced) < 0.04


def tai(cells: dict[str, nn.Module], tree: Any) -> tuple[Tensor, Tensor]:
    """Tai et al., equations 9 to 14, each gate by itself, straight from the tree."""
    if isinstance(tree, int):
        leaf = cells["leaf"]
        assert isinstance(leaf, Leaf)
        assert leaf.gates.bias is not None
        x, hidden = leaf.embedding.weight[tree], leaf.embedding.weight.shape[1]
        (wi, wo, wu), (bi, bo, bu) = leaf.gates.weight.split(hidden), leaf.gates.bias.split(hidden)
        c = torch.sigmoid(wi @ x + bi) * torch.tanh(wu @ x + bu)
        return torch.sigmoid(wo @ x + bo) * torch.tanh(c), c
    children = [tai(cells, child) for child in tree]
    cell = cells[f"internal{len(children)}"]
    assert isinstance(cell, Internal)
    assert cell.gates.bias is not None
    hidden = children[0][0].shape[0]
    # gate -> child -> the matrix that the child's h is multiplied with
    matrices = [rows.split(hidden, 1) for rows in cell.gates.weight.split(hidden)]
    i, o, u, *f = [
        sum((matrix @ h for matrix, (h, _) in zip(row, children, strict=True)), bias)
        for row, bias in zip(matrices, cell.gates.bias.split(hidden), strict=True)
    ]
    c = torch.sigmoid(i) * torch.tanh(u)
    for forget, (_, child) in zip(f, children, strict=True):
        c = c + torch.sigmoid(forget) * child
    return torch.sigmoid(o) * torch.tanh(c), c


@pytest.mark.parametrize("tree", [7, (7,), (1, 2), ((1, 2), 3), (1, (2, (3, 4, 5)), (6,)), [[1, 2], [3, 4]]])
def test_the_treelstm_agrees_with_its_equations(tree: Any) -> None:
    model = made("treelstm:hidden=6,vocab=12,children=3")
    for cell in model.cells.values():
        bend(cell)
    graph = model.unfold(Request("r0", (), structure=tree))
    (root,) = graph.topology.results
    for ours, theirs in zip(evaluate(model, graph)[root], tai(model.cells, tree), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_fewer_children_count_as_zeros() -> None:
    """One set of matrices (Tai et al.): a missing child has h = c = 0."""
    model = made("treelstm:hidden=6,vocab=12,children=3")
    h, c, none = torch.randn(4, 6).double(), torch.randn(4, 6).double(), torch.zeros(4, 6).double()
    full = model.cells["internal3"](h, c, none, none, none, none)
    for ours, theirs in zip(model.cells["internal1"](h, c), full, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_deep_trees_do_not_exceed_pythons_recursion_limit() -> None:
    model = made("treelstm:hidden=4,vocab=12")
    text = "(1 7)"
    for _ in range(5000):
        text = f"(0 {text} (1 8))"
    request = Request("r0", (), structure=read_tree(text))
    model.check(request)
    assert len(model.unfold(request)) == 10001


@pytest.mark.parametrize(
    ("text", "tree"),
    [("(3 (2 12) (2 (1 5) (2 7)))", (12, (5, 7))), ("(2 5)", 5), ("( 3 (2 1)\n(2 4) )", (1, 4)), ("(3 (2 5))", (5,))],
)
def test_treebank_trees_are_read(text: str, tree: Any) -> None:
    assert read_tree(text) == tree
    assert unfold_tree("r0", read_tree(text), 20, 2)


def test_words_have_the_same_id_everywhere() -> None:
    assert read_tree("(3 (2 It) (4 (2 's) (3 It)))") == (23638, (23084, 23638))
    assert read_tree("(3 (2 It) (2 12))", vocab_size=100) == (38, 65)


@pytest.mark.parametrize(
    "text", ["", "(2)", "()", "(2 3", "(2 3))", "2 3", "(2 3) (2 4)", "(3 4 5)", "(3 4 (2 1))", "x"]
)
def test_other_trees_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be read, since .*: write it as in"):
        read_tree(text)


@pytest.mark.parametrize(
    ("model", "request_", "message"),
    [
        ("lstm", Request("r0", ()), "empty prompt"),
        ("lstm", Request("r0", (3, 30)), "token id 30, and the vocabulary is 0 to 29"),
        ("lstm", Request("r0", (-1,)), "token id -1"),
        ("lstm", Request("r0", (1,), structure=(1, 2)), "gives a tree, and lstm reads a prompt"),
        ("lstm", Request("r0", (1,), problem="is bad."), "Request 'r0' is bad."),
        ("seq2seq", Request("r0", (1,), max_new_tokens=0), "asks for 0 new tokens"),
        ("treelstm", Request("r0", (1, 2)), "gives no tree"),
        ("treelstm", Request("r0", (), structure=(1, 30)), "token id 30"),
        ("treelstm", Request("r0", (), structure=(1, -2)), "token id -2"),
        ("treelstm", Request("r0", (), structure=(1, 2, 3)), "a node of 3 subtrees, and this model takes 1 to 2"),
        ("treelstm", Request("r0", (), structure=(1, ())), "a node of 0 subtrees"),
        ("treelstm", Request("r0", (), structure=(1, "word")), "'word' in it"),
        ("treelstm", Request("r0", (), structure=(1, True)), "True in it"),
    ],
)
def test_requests_that_cannot_be_served(model: str, request_: Request, message: str) -> None:
    with pytest.raises(RequestRefused, match=message) as refused:
        made(f"{model}:hidden=4,vocab=30").check(request_)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "sizes", "num_parameters", "slot_bytes"),
    [
        ("lstm:hidden=8,vocab=20", {"lstm": 8 * 64}, 20 * 8 + 8 * 64 + 32, 32),
        (
            "seq2seq:hidden=8,vocab=20",
            {"encoder": 8 * 64, "decoder": 8 * 64 + 160},
            2 * (160 + 8 * 64 + 32) + 160,
            32 + 8,
        ),
        (
            "treelstm:hidden=8,vocab=20,children=3",
            {"leaf": 3 * 64, "internal1": 4 * 64, "internal2": 10 * 64, "internal3": 18 * 64},
            160 + 35 * 64 + (3 + 4 + 5 + 6) * 8,
            32,
        ),
    ],
)
def test_the_figures_of_a_model(text: str, sizes: dict[str, int], num_parameters: int, slot_bytes: int) -> None:
    """Matrices, and embeddings and biases beside them; a slot holds h and c in 16 bits, and a decoder's word in 64."""
    source = resolve_cells(text)
    assert source is not None
    assert (source.config.sizes, source.config.num_parameters) == (sizes, num_parameters)
    assert source.config.slot_bytes("bfloat16") == slot_bytes
    assert source.load(device="meta").types.keys() == source.load().types.keys()


def test_names_of_models() -> None:
    assert resolve_cells("lstm") == CellSource("lstm", CellConfig("lstm", 1024, 30000))
    assert resolve_cells("treelstm:children=5, hidden=7") == CellSource(
        "treelstm:children=5, hidden=7", CellConfig("treelstm", 7, 30000, 5)
    )
    assert resolve_cells("tiny") is None
    assert CellConfig("seq2seq").eos_ids == (2,)
    assert CellConfig("lstm").eos_ids == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lstm:hiden=3", "no setting of the model lstm 'hiden' .did you mean \"hidden\"."),
        ("lstm:children=3", "'children'"),
        ("lstm:hidden", "no value for hidden: give hidden=NUMBER"),
        ("lstm:hidden=0", 'hidden of the model lstm is "0": give a whole number from 1'),
        ("lstm:hidden=x", "give a whole number"),
        ("lstm:hidden=3,hidden=4", "hidden twice"),
        ("lstm:", "''"),
        ("seq2seq:vocab=3", "from 4 to"),
    ],
)
def test_bad_settings(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_cells(text)


def test_weights_are_those_of_the_seed_whatever_the_dtype() -> None:
    one, same, wide, other = (
        made("treelstm:hidden=8,vocab=20", dtype, seed)
        for dtype, seed in (("float32", 1), ("float32", 1), ("float64", 1), ("float32", 2))
    )
    for name, cell in one.cells.items():
        for key, weight in cell.state_dict().items():
            assert torch.equal(weight, same.cells[name].state_dict()[key])
            assert torch.equal(weight, wide.cells[name].state_dict()[key].float())
    assert not torch.equal(*(model.cells["leaf"].state_dict()["gates.weight"] for model in (one, other)))


def test_packed_weights_compute_the_same() -> None:
    packed, plain = made("seq2seq:hidden=32,vocab=50", "float32"), made("seq2seq:hidden=32,vocab=50", "float64")
    word, h, c = torch.tensor([4, 7, 9]), torch.randn(3, 32), torch.randn(3, 32)
    ours, theirs = packed.run("decoder", word, h, c), plain.run("decoder", word, h.double(), c.double())
    torch.testing.assert_close(ours[0], theirs[0].float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[2], theirs[2])


class GRU(nn.Module):
    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.cell = nn.GRUCell(hidden, hidden)

    def forward(self, word: Tensor, h: Tensor) -> Tensor:
        found: Tensor = self.cell(self.embedding(word), h)
        return found


def gru(config: CellConfig, dtype: str, device: str, seed: int) -> CellModel:
    def unfold(request: Request) -> CellGraph:
        states = [Zeros((config.hidden_size,)), *(Output(i) for i in range(len(request.prompt)))]
        return CellGraph(tuple(Node("gru", pair) for pair in zip(request.prompt, states, strict=False)))

    cells = {"gru": GRU(config.hidden_size, config.vocab_size)}
    return CellModel("gru", cells, unfold, Request("example", (1, 2)), dtype=dtype, device=device)


def test_a_registered_kind_is_like_the_built_in_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.model.cells.config._REGISTERED", {})
    assert resolve_cells("gru") is None
    register_cells("gru", gru)
    source = resolve_cells("gru:hidden=8,vocab=20")
    assert source is not None
    assert (source.config.slot_bytes("float64"), source.config.eos_ids) == (64, ())
    assert source.config.sizes == {"gru": 2 * 3 * 8 * 8}
    model = source.load("float64")
    request = Request("r0", (3, 1, 4))
    h = torch.zeros(1, 8).double()
    for word in request.prompt:
        h = model.cells["gru"](torch.tensor([word]), h)
    torch.testing.assert_close(evaluate(model, model.unfold(request))[2][0], h[0], **EXACT)
    with pytest.raises(UsageError, match="already a kind"):
        register_cells("gru", lambda *_: model)
    with pytest.raises(UsageError, match="already a kind"):
        register_cells("lstm", gru)
    with pytest.raises(UsageError, match="is no name"):
        register_cells("a:b", gru)
