"""Faults of block_pool: what a block is cached and looked up under."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.contract import ExtraKey, HashFunction
from kvlockstep.reference.block_pool.keys import BlockKey, RequestKeys


def _own_tokens(pool: BlockPool, key: BlockKey) -> tuple[int, ...]:
    return key.prefix.tokens[-pool._block_size :]


@fault("bp-chain-no-parent", law="prefix_soundness", seen=("vllm#12603",))
class ChainWithoutParent(BlockPool):
    """A block's key is its own tokens and extra key, without its parent."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        def own(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
            return self._hash(0, tokens, extra_key)

        return RequestKeys(self._block_size, extra_keys, own)

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        same_tokens = _own_tokens(self, key) == _own_tokens(self, wanted)
        return same_tokens and key.prefix.extra_keys[-1] == wanted.prefix.extra_keys[-1]


@fault("bp-hash-trusted", law="prefix_soundness", seen=("vllm#12621", "openvino.genai#3722"))
class HashTrusted(BlockPool):
    """A lookup trusts an equal hash and does not compare the tokens."""

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        return True


@fault("bp-python-hash", law="prefix_soundness", seen=("seed 002", "vllm#12621"))
class PythonHashTrusted(HashTrusted):
    """A lookup trusts Python's hash, for which -1 and -2 are equal."""

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        super().__init__(blocks, block_size, _python_hash)


@fault("bp-seed-key", law="prefix_soundness", seen=("seed 002", "vllm#54727"))
class SeedKey(PythonHashTrusted):
    """A lookup verifies a block's own tokens but trusts the hash of its parents."""

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        return _own_tokens(self, key) == _own_tokens(self, wanted)


def _python_hash(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    return hash((parent, *tokens, extra_key))


@fault("bp-no-extra-keys", law="content_equality", seen=("seed 002", "LMCache#4783"))
class NoExtraKeys(BlockPool):
    """Keys leave out the extra keys, such as adapters and salts."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        return super().request_keys()


@fault("bp-extra-outside", law="prefix_soundness", seen=("vllm#12603",))
class ExtraKeysOutsideChain(BlockPool):
    """The extra key is not hashed into the chain, so later blocks do not inherit it."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        def plain(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
            return self._hash(parent, tokens, None)

        return RequestKeys(self._block_size, extra_keys, plain)

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        same_tokens = key.prefix.tokens == wanted.prefix.tokens
        return same_tokens and key.prefix.extra_keys[-1] == wanted.prefix.extra_keys[-1]


@fault("bp-chain-restarts", law="prefix_completeness", seen=("tokenspeed#87",))
class ChainRestarts(BlockPool):
    """A request that grows starts a new key chain with each piece."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        class Restarting(RequestKeys):
            def extend(self, tokens: Sequence[int]) -> None:
                known, self.hashes = self.hashes, [0] * len(self.hashes)
                super().extend(tokens)
                self.hashes[: len(known)] = known

        return Restarting(self._block_size, extra_keys, self._hash)


@fault("bp-partial-keyed", law="agreement", seen=("vllm#11186",))
class PartialBlockKeyed(BlockPool):
    """A block that is not full also gets a key."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        class Rounded(RequestKeys):
            def extend(self, tokens: Sequence[int]) -> None:
                del self.hashes[len(self._tokens) // self._block_size :]
                super().extend(tokens)
                rest = len(self._tokens) % self._block_size
                if rest:
                    self.hashes.append(self._hash(0, tuple(self._tokens[-rest:]), None))

        return Rounded(self._block_size, extra_keys, self._hash)


@fault("bp-callers-list", law="content_equality", seen=("mutant",))
class CallersListKept(BlockPool):
    """A request keeps the caller's token list, which the caller may change later."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        class Keeping(RequestKeys):
            def extend(self, tokens: Sequence[int]) -> None:
                first = not self._tokens
                super().extend(tokens)
                if first and isinstance(tokens, list):
                    self._tokens = tokens

        return Keeping(self._block_size, extra_keys, self._hash)


@fault("bp-first-extra-key", law="content_equality", seen=("vllm#56655",))
class FirstExtraKeyOnly(BlockPool):
    """Only the first part of a block's extra key enters its key."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        return super().request_keys([key[0] if isinstance(key, tuple) else key for key in extra_keys])


@fault("bp-extra-never-hit", law="prefix_completeness", seen=("llm-d-kv-cache#411",))
class ExtraKeyNeverHit(BlockPool):
    """A request with extra keys is cached with them but looked up without them."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        return [] if any(key is not None for key in keys._extra_keys) else hits
