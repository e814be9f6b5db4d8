"""A kv_manager with one window and no prefix cache: each request goes round in blocks of its own."""

from kvlockstep.reference.contracts import Group, needed


class RingManager:
    prefix_cache, chunk, frees_window = False, True, True

    def __init__(self, blocks, block_size):
        self.block_size, self.total = block_size, blocks * block_size
        self.groups = (Group("window", block_size, reach=6),)
        self.free, self.tables, self.computed = list(range(blocks)), {}, {}

    def admit(self, rid, tokens, extra_key, n):
        self.tables[rid], self.computed[rid] = [], 0
        return 0 if self.reserve(rid, n) else self.finish(rid)

    def reserve(self, rid, n):
        more = -(-(self.computed[rid] + n) // self.block_size) - len(self.tables[rid])
        if more > len(self.free):
            return False
        self.tables[rid] += [self.free.pop(0) for _ in range(more)]
        return True

    def append(self, rid, token):
        pass

    def launch(self):
        pass

    def copies(self):
        return []

    def slots(self, rid, group):
        size = self.block_size
        return [None if block is None else block * size + i for block in self.tables[rid] for i in range(size)]

    def held(self, rid, group):
        return [block for block in self.tables[rid] if block is not None]

    def commit(self, rid, n):
        self.computed[rid] = computed = self.computed[rid] + n
        first = needed(self.groups[0], computed, computed).start // self.block_size
        for place, block in enumerate(self.tables[rid][:first]):
            self.tables[rid][place] = None
            self.free += [block] if block is not None else []

    def finish(self, rid):
        self.free += self.held(rid, 0)
        del self.tables[rid]

    abort = preempt = finish

    def avail(self):
        return len(self.free)

    def free_slots(self):
        return list(self.free)

    free_now = avail
