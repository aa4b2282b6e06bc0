"""Joins a stand-alone router to one or more servers, and keeps the last good table on disk."""

from llmgw.router.feed.client import Fed, FeedClient
from llmgw.router.feed.last_table import LastTable
from llmgw.router.feed.source import FeedSource

__all__ = ["Fed", "FeedClient", "FeedSource", "LastTable"]
