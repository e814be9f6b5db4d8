"""A Llama that generates from our paged KV says what it says without any cache: the last word on the whole."""

from __future__ import annotations

import random

import pytest
import torch

from kvlockstep.impl.kv_manager.blocks import BlockManager
from kvlockstep.impl.kv_manager.generation import PagedGenerator
from kvlockstep.impl.kv_manager.paged import PagedManager
from kvlockstep.impl.kv_manager.pool import PoolManager
from kvlockstep.impl.kv_store import KVStore
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store import LAYOUTS

LAYERS, HEADS, DIM, VOCABULARY = 2, 2, 16, 61
BLOCK_SIZE = 4
BOUND = 1e-3
"""Most that a logit may differ from that of a forward without cache: another order of float32 sums. Logits are some
units apart, and one wrong block moves them by more than PLANTED."""
PLANTED = 1e-1


@pytest.fixture
def model(device):
    # Imported here, since it takes each worker of the tests a second.
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=HEADS,
        head_dim=DIM,
        max_position_embeddings=256,
        initializer_range=0.4,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).eval().to(device)


def generator(model, device, make=BlockManager, *, blocks=24, layout="layer_major", batch=4, chunk=6):
    store = KVStore(blocks, BLOCK_SIZE, 0, KVShape(LAYERS, HEADS, DIM, "float32"), layout, device=device)
    return PagedGenerator(model, make(blocks, BLOCK_SIZE), store, batch=batch, chunk=chunk)


def submit_all(generator, requests, seed):
    """Prompts of 5 to 30 tokens, most of them with a common beginning."""
    draw = random.Random(seed)
    stems = [[draw.randrange(VOCABULARY) for _ in range(n)] for n in (8, 13, 21)]
    for i in range(requests):
        prompt = draw.choice([*stems, []]) + [draw.randrange(VOCABULARY) for _ in range(draw.randrange(5, 10))]
        generator.submit(f"r{i}", prompt, len(prompt) + draw.randrange(4, 16))
    return draw


def run(generator, draw, forks=6):
    """Steps to the end; now and then a running request is forked."""
    forked = 0
    while generator.step():
        running = list(generator.running())
        if running and forked < forks and draw.random() < 0.2:
            forked += generator.fork(draw.choice(running), f"f{forked}", rank=1)
    return forked


@torch.inference_mode()
def worst_difference(model, generator):
    """The largest difference of a logit from that of one forward over all tokens, without a cache."""
    worst = 0.0
    for request in generator.done.values():
        ids = torch.tensor([request.tokens], device=model.device)
        cold = model(input_ids=ids, use_cache=False).logits[0].float().cpu()
        for position, logits in request.logits.items():
            worst = max(worst, float((logits - cold[position]).abs().max()))
    return worst


@pytest.mark.parametrize("make", [BlockManager, PoolManager, PagedManager], ids=lambda make: make.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_a_run_without_cache(model, device, make, layout):
    paged = generator(model, device, make, layout=layout)
    forked = run(paged, submit_all(paged, 30, seed=3))
    assert len(paged.done) == 30 + forked
    assert worst_difference(model, paged) < BOUND
    everyone = paged.done.values()
    assert sum(request.cached[0] > 0 for request in everyone if request.cached) > 5
    assert sum(len(request.cached) > 1 for request in everyone) > 1
    assert paged.preemptions
    assert paged.copied
    assert forked == 6
    assert sum(map(len, (request.tokens for request in everyone))) > 10 * 24 * BLOCK_SIZE


def test_token_by_token_they_are_bit_for_bit_the_same(model, device):
    """One request a batch and one token a step: every product has the same shape with the cache and without it."""
    warm, cold = (generator(model, device, batch=1, chunk=1) for _ in range(2))
    for requests in (warm, cold):
        submit_all(requests, 8, seed=4)
    while warm.step():
        pass
    while cold.step():
        if not cold.running():
            cold.manager.evict_all()
            cold.store.kv.fill_(torch.nan)
    assert all(request.cached == [0] for request in cold.done.values())
    assert sum(request.cached[0] > 0 for request in warm.done.values()) > 2
    for name, request in warm.done.items():
        assert request.tokens == cold.done[name].tokens
        assert all(torch.equal(logits, cold.done[name].logits[at]) for at, logits in request.logits.items())


@pytest.mark.parametrize("plane", ["keys", "values"])
def test_one_wrong_block_shows(model, device, plane):
    """The V or K of one shared block in one layer are those of another block."""
    paged = generator(model, device, batch=1)
    prompt = list(range(20))
    paged.submit("first", prompt, 24)
    while paged.step():
        pass
    kv = getattr(paged.store, plane)(1)
    first, second = paged.manager.admit("look", prompt, None, 1), paged.manager.blocks("look")[:2]
    assert first
    kv[second[0]] = kv[second[1]]
    paged.manager.finish("look")
    paged.submit("second", prompt, 24)
    while paged.step():
        pass
    assert worst_difference(model, paged) > PLANTED


@pytest.mark.parametrize("broken", ["no_copy_on_write", "stale_hits"])
def test_a_broken_manager_shows(model, device, broken):
    class NoCopyOnWrite(BlockManager):
        def copies(self):
            return []

    class StaleHits(BlockManager):
        def _evict(self):
            block, _ = self._idle.popitem(last=False)
            return block

    paged = generator(model, device, {"no_copy_on_write": NoCopyOnWrite, "stale_hits": StaleHits}[broken])
    run(paged, submit_all(paged, 30, seed=3))
    assert worst_difference(model, paged) > PLANTED
