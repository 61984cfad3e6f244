"""Groups of ranks in several processes, their mailboxes, and the tags of their messages.

Invariant of a mailbox: the k-th send at its `src` and the k-th receive at its `dst` are the two ends of one message. No
other mailbox between these two ranks has its tag, and a transport keeps the order of messages with one tag.
"""

from __future__ import annotations

from parlab.world.engines.log import POST_RECEIVE, POST_SEND
from parlab.world.engines.tasks import Group, Mailbox

BoxKey = tuple[str, str, int, int]  # of a mailbox: group, channel, src, dst


class ProcessGroup(Group):
    """A group of processes. No other group that shares two of its ranks has both its `split_id` and its `background`.

    `split_id` is that of the split that made the group; 0: the world.
    """

    def __init__(self, name: str, members: tuple[int, ...], split_id: int, *, background: bool = False):
        super().__init__(name, members)
        self.split_id, self.background = split_id, background
        self.next_collective = 0  # the number of the one that this rank enters next

    def tag(self, channel: str) -> int:
        """The tag of its messages on this channel: `split_id`, and a bit each for `background` and the channel."""
        return 4 * self.split_id + 2 * self.background + (channel == "collectives")

    def mailbox(self, channel: str, src: int, dst: int) -> ProcessMailbox:
        """See `Group`."""
        if (channel, src, dst) not in self.mailboxes:
            key = (self.name, channel, self.members[src], self.members[dst])
            self.mailboxes[channel, src, dst] = ProcessMailbox(key, self.tag(channel))
        return self.mailboxes[channel, src, dst]  # type: ignore[return-value]


class ProcessMailbox(Mailbox):
    """One end of a mailbox between processes. It counts this end's posts."""

    __slots__ = ("key", "posts", "tag")

    def __init__(self, key: BoxKey, tag: int):
        super().__init__(*key[2:])
        self.key = key
        self.tag = tag
        self.posts = {POST_SEND: 0, POST_RECEIVE: 0}
