"""kv_manager on LightLLM's RadixCache and MemoryManager (1.0.1), on CPU, one slot a block.

Calls come in the order of the engine's own router and chunked-prefill backend. The router lets a request in only if
its whole prompt fits without any hit; the backend then looks it up and pins the hit (`InferReq.init_all`). A step
evicts and allocates for all decodes together, then for all prefills. Only a finished, aborted or paused request goes
into the tree (`InferenceContext.filter`, `pause_reqs`); one aborted after its launch is first counted as computed, as
the engine looks at aborts before the next step. Rejected drafts are freed after the forward. Source: lightllm/server/
router, req_queue/chunked_prefill/impl.py and model_infer/mode_backend (base_backend.py, generic_pre_process.py).
"""

from __future__ import annotations

import importlib
import itertools
import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kvlockstep.impl.engines.host_memory import pageable
from kvlockstep.impl.engines.lightllm.get import GET
from kvlockstep.impl.engines.loading import find, without_the_rest

BARE = (
    "lightllm",
    "lightllm.common",
    "lightllm.server",
    "lightllm.server.router",
    "lightllm.server.router.dynamic_prompt",
    "lightllm.server.router.model_infer",
    "lightllm.utils",
)
STUBS = (
    "lightllm.common.basemodel",
    "lightllm.common.kv_trans_kernel",
    "lightllm.distributed",
    "lightllm.server.core",
    "lightllm.server.multimodal_params",
    "lightllm.server.pd_io_struct",
    "lightllm.server.router.dynamic_prompt.shared_arr",
    "lightllm.utils.config_utils",
    "lightllm.utils.custom_kernel_utis",
    "lightllm.utils.dist_utils",
    "lightllm.utils.envs_utils",
    "lightllm.utils.infer_utils",
    "lightllm.utils.profile_max_tokens",
    "requests",
)
MAX_REQUESTS = 512

ENGINE = find(
    "lightllm",
    "server/router/dynamic_prompt/radix_cache.py",
    GET,
)


def _load(name: str) -> Any:
    return importlib.import_module(f"lightllm.{name}")


with without_the_rest(ENGINE, BARE, STUBS):
    radix, memory, requests, batch = (
        _load(name)
        for name in (
            "server.router.dynamic_prompt.radix_cache",
            "common.mem_manager",
            "common.req_manager",
            "server.router.model_infer.infer_batch",
        )
    )


class Counters:
    """Numbers that the engine keeps in shared memory, where its router reads them."""

    def __init__(self, name: str, shape: tuple[int, ...] = (1,), dtype: Any = np.int64) -> None:
        self.arr = np.zeros(shape, dtype=dtype)

    def set_value(self, value: int) -> None:
        self.arr[0] = value


radix.SharedArray = memory.SharedInt = Counters
batch.custom_cat = torch.cat
for module in (memory, requests, batch):
    module.logger.setLevel(logging.WARNING)


class HostMemoryManager(memory.MemoryManager):  # type: ignore[misc, name-defined]
    """The slots without the KV buffers behind them."""

    def _init_buffers(self, *_sizes: Any) -> None:
        pass


class DeviceTensor(torch.Tensor):
    """As on a device, `cpu` makes a copy: the tree keeps it while the table's row serves the next request."""

    def cpu(self, *_options: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


class LightllmKVManager:
    """One RadixCache over one MemoryManager of blocks * block_size slots; the engine has no larger blocks."""

    engine = "lightllm"
    version = ENGINE.version
    block_size = 1
    chunk = True
    hash_trust = "none"

    def __init__(self, blocks: int, block_size: int) -> None:
        self.total = self.max_length = blocks * block_size
        with pageable():
            self._slots = HostMemoryManager(self.total, None, 0, 0, 0)
        self._tree = radix.RadixCache("", self.total, 0, self._slots)
        self._table = torch.zeros((MAX_REQUESTS, self.total), dtype=torch.int32).as_subclass(DeviceTensor)
        self._context = batch.InferenceContext()
        rows = requests.ReqManager.__new__(requests.ReqManager)
        rows.req_list = requests._ReqLinkedList(MAX_REQUESTS)
        rows.req_to_token_indexs = self._table
        rows.mem_manager = self._slots
        self._context.register(rows, self._tree, SimpleNamespace(put_back_req_obj=lambda _: None), 0)
        self._numbers: dict[str, int] = {}
        self._next_number = itertools.count()
        self._decodes: dict[str, int] = {}
        self._prefills: dict[str, int] = {}
        self._launched: dict[str, int] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        if len(tokens) + self._owed() > self.avail():
            return None
        number = self._numbers[rid] = self._numbers[rid] if rid in self._numbers else next(self._next_number)
        self._context.add_reqs([(number, number, None, 0)], init_req_obj=False)
        req = self._request(rid)
        if not req.initialized:
            self._start(req, tokens)
        batch.g_infer_context = self._context
        req.init_all()
        self._prefills[rid] = min(n, len(tokens) - req.cur_kv_len)
        return int(req.cur_kv_len)

    def append(self, rid: str, token: int) -> None:
        req = self._request(rid)
        req.set_next_gen_token_id(token, 0.0)
        req.cur_output_len += 1

    def reserve(self, rid: str, n: int) -> bool:
        if n + self._owed() > self.avail():
            return False
        req = self._request(rid)
        is_decode = req.cur_kv_len + 1 == req.get_cur_total_len()
        (self._decodes if is_decode else self._prefills)[rid] = n
        return True

    def copies(self) -> list[tuple[int, int]]:
        return []

    def launch(self) -> None:
        for scheduled in (self._decodes, self._prefills):
            if scheduled:
                self._allocate(scheduled)
        self._launched |= self._decodes | self._prefills
        self._decodes.clear()
        self._prefills.clear()

    def slots(self, rid: str) -> list[int]:
        req = self._request(rid)
        slots: list[int] = self._table[req.req_idx, : req.cur_kv_len + self._launched.get(rid, 0)].tolist()
        return slots

    def commit(self, rid: str, n: int) -> None:
        req = self._request(rid)
        allocated = req.cur_kv_len + self._launched.pop(rid)
        req.cur_kv_len += n
        if req.cur_kv_len < allocated:
            self._slots.free(self._table[req.req_idx, req.cur_kv_len : allocated].clone())

    def finish(self, rid: str) -> None:
        self._context.filter([self._numbers.pop(rid)])

    def abort(self, rid: str) -> None:
        if rid in self._launched:
            req = self._request(rid)
            self.commit(rid, min(self._launched[rid], req.get_cur_total_len() - req.cur_kv_len))
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        self._context.pause_reqs([self._numbers[rid]])

    def avail(self) -> int:
        return self.free_now() + int(self._tree.get_tree_total_tokens_num() - self._tree.get_refed_tokens_num())

    def free_now(self) -> int:
        return int(self._slots.can_use_mem_size)

    def free_slots(self) -> Iterable[int] | None:
        free: list[int] = self._slots.mem_state[self._slots.mark_start :].tolist()
        return free

    free_blocks = free_slots
    blocks = slots

    def _request(self, rid: str) -> Any:
        return self._context.requests_mapping[self._numbers[rid]]

    def _start(self, req: Any, tokens: list[int]) -> None:
        """The attributes that `init_all` gives a text request before it looks it up."""
        ids = np.zeros(self.total + 1, dtype=np.int64)
        ids[: len(tokens)] = tokens
        req.shm_req = SimpleNamespace(
            request_id=req.req_id,
            input_len=len(tokens),
            shm_prompt_ids=SimpleNamespace(arr=ids),
            shm_logprobs=SimpleNamespace(arr=np.zeros(len(ids))),
        )
        req.shared_kv_node = None
        req.cur_kv_len = req.cur_output_len = 0
        req.initialized = req.paused = True

    def _owed(self) -> int:
        """Slots that this step will allocate."""
        return sum(self._decodes.values()) + sum(self._prefills.values())

    def _allocate(self, scheduled: dict[str, int]) -> None:
        needed = sum(scheduled.values())
        self._tree.free_radix_cache_to_get_enough_token(needed)
        slots = self._slots.alloc(needed).clone()
        for rid, n in scheduled.items():
            req = self._request(rid)
            self._table[req.req_idx, req.cur_kv_len : req.cur_kv_len + n], slots = slots[:n], slots[n:]


make = LightllmKVManager
