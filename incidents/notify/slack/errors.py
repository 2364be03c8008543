"""What Slack's error words mean for us, as a table: who can mend it, and how. Pure.

Words: https://docs.slack.dev/reference/methods/chat.postMessage (and chat.update,
conversations.history).
"""

from __future__ import annotations

# The whole channel takes nothing until a person mends this.
CHANNEL_REFUSALS: dict[str, str] = {
    "invalid_auth": (
        "Slack does not know the token: set SLACK_BOT_TOKEN to the app's bot token (xoxb-...)."
    ),
    "not_authed": "Slack got no token: set SLACK_BOT_TOKEN to the app's bot token (xoxb-...).",
    "token_revoked": (
        "The token was revoked: reinstall the Slack app and set SLACK_BOT_TOKEN to its new bot"
        " token."
    ),
    "token_expired": "The token has expired: set SLACK_BOT_TOKEN to a bot token without rotation.",
    "account_inactive": (
        "The bot's account was removed: reinstall the Slack app and set SLACK_BOT_TOKEN."
    ),
    "not_allowed_token_type": (
        "This is not a bot token: set SLACK_BOT_TOKEN to the one that begins with xoxb-."
    ),
    "org_login_required": (
        "The workspace is being moved: sending goes on by itself once Slack is done."
    ),
    "access_denied": "Slack denies access: have a workspace admin approve the app.",
    "ekm_access_denied": "The workspace's key management denies access: ask a workspace admin.",
    "missing_scope": (
        "The bot lacks a permission: add chat:write and channels:history (groups:history for a"
        " private channel) to the Slack app, then reinstall it."
    ),
    "no_permission": (
        "The bot lacks a permission: add chat:write and channels:history to the Slack app,"
        " reinstall it."
    ),
    "channel_not_found": (
        "Slack does not show the bot this channel: check SLACK_CHANNEL (an id, C...), and invite"
        " the bot if the channel is private."
    ),
    "not_in_channel": "The bot is not in the channel: write /invite @kintsugi there.",
    "is_archived": "The channel is archived: unarchive it, or set SLACK_CHANNEL to another one.",
    "restricted_action": "A workspace setting keeps the bot from posting: ask a workspace admin.",
    "restricted_action_read_only_channel": (
        "The channel is read-only: let the bot post there, or use another channel."
    ),
    "restricted_action_non_threadable_channel": (
        "The channel allows no threads: set SLACK_CHANNEL to another one."
    ),
    "restricted_action_thread_locked": (
        "The channel's threads are locked: unlock them, or use another channel."
    ),
    "messages_tab_disabled": "The app cannot post there: set SLACK_CHANNEL to a channel id (C...).",
}

# This message alone is refused: the words of a bug in what we render, kept visible.
MESSAGE_REFUSALS: frozenset[str] = frozenset(
    {
        "invalid_blocks",
        "invalid_blocks_format",
        "msg_too_long",
        "msg_blocks_too_long",
        "no_text",
        "metadata_too_large",
        "invalid_metadata_format",
        "invalid_metadata_schema",
        "invalid_arguments",
        "invalid_arg_name",
    }
)

# Refusals of the form alone: the same words without blocks are accepted.
FORM_REFUSALS: frozenset[str] = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"}
)

# The message to update, or the card to answer to, is no longer there for us.
GONE: frozenset[str] = frozenset(
    {
        "message_not_found",
        "cant_update_message",
        "edit_window_closed",
        "thread_not_found",
        "cannot_reply_to_message",
    }
)

# "It's possible some aspect of the operation succeeded before the error was raised."
UNKNOWN_OUTCOME: frozenset[str] = frozenset(
    {"fatal_error", "internal_error", "request_timeout", "service_unavailable", "team_added_to_org"}
)

RATE_LIMITS: frozenset[str] = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})


def get_advice(word: str) -> str:
    """A sentence for a person. A word that is not in the tables is named as it is."""
    if word in CHANNEL_REFUSALS:
        return f"{CHANNEL_REFUSALS[word]} ({word})"
    if word in MESSAGE_REFUSALS:
        return (
            f"Slack refuses the form of this message ({word}); it is kept, and tried again every"
            " half hour."
        )
    return (
        f"Slack answered {word!r}: see docs.slack.dev/reference/methods/chat.postMessage; it is"
        " tried again."
    )
