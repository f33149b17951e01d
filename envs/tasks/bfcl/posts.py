"""TwitterAPI: posts, comments and who follows whom."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.envs.tasks.bfcl.api import Answer, RefusedError


class Tweet(msgspec.Struct):
    id: int
    username: str
    content: str
    tags: list[str] = []
    mentions: list[str] = []


class Config(msgspec.Struct, frozen=True):
    """`tweets`, `comments`: by the number of the post, as text. `retweets`: numbers by user."""

    username: str = "john"
    password: str = "john123"  # noqa: S105
    authenticated: bool = False
    tweets: dict[str, Tweet] = {}
    comments: dict[str, list[dict[str, str]]] = {}
    retweets: dict[str, list[int]] = {}
    following_list: list[str] = msgspec.field(default_factory=lambda: ["alice", "bob"])
    tweet_counter: int = 0


class Posts:
    """An Api."""

    def __init__(self, config: Config) -> None:
        self._user, self._password = config.username, config.password
        self._in = config.authenticated
        self._tweets = {each.id: each for each in config.tweets.values()}
        self._comments = {key: [*texts] for key, texts in config.comments.items()}
        self._retweets = {user: [*ids] for user, ids in config.retweets.items()}
        self._following = list(config.following_list)
        self._counter = config.tweet_counter

    def state(self) -> Any:
        tweets = {number: msgspec.to_builtins(each) for number, each in self._tweets.items()}
        told = [self._comments, self._retweets, self._following]
        return [self._user, self._in, tweets, *told, self._counter]

    def authenticate_twitter(self, username: str, password: str) -> Answer:
        """Log a user in with name and password."""
        right = (username, password) == (self._user, self._password)
        self._in = self._in or right
        return {"authentication_status": right}

    def posting_get_login_status(self) -> Answer:
        """Tell whether the user is logged in."""
        return {"login_status": self._in}

    def post_tweet(
        self, content: str, tags: list[str] | None = None, mentions: list[str] | None = None
    ) -> Answer:
        """Post a text, with tags (#tag) and mentions (@user)."""
        self._author()
        tweet = Tweet(self._counter, self._user, content, [*(tags or ())], [*(mentions or ())])
        self._tweets[tweet.id] = tweet
        self._counter += 1
        return _shown(tweet)

    def comment(self, tweet_id: int, comment_content: str) -> Answer:
        """Comment on a post."""
        self._author()
        self._tweet(tweet_id)
        said = {"username": self._user, "content": comment_content}
        self._comments.setdefault(str(tweet_id), []).append(said)
        return {"comment_status": f"commented on {tweet_id}"}

    def mention(self, tweet_id: int, mentioned_usernames: list[str]) -> Answer:
        """Mention users in a post that is there."""
        self._tweet(tweet_id).mentions.extend(mentioned_usernames)
        return {"mention_status": f"mentioned in {tweet_id}"}

    def retweet(self, tweet_id: int) -> Answer:
        """Post another's post again."""
        self._author()
        self._tweet(tweet_id)
        again = self._retweets.setdefault(self._user, [])
        if tweet_id in again:
            return {"retweet_status": f"{tweet_id} was retweeted already"}
        again.append(tweet_id)
        return {"retweet_status": f"{tweet_id} is retweeted"}

    def follow_user(self, username_to_follow: str) -> Answer:
        """Follow a user."""
        self._author()
        if username_to_follow in self._following:
            return {"follow_status": False}
        self._following.append(username_to_follow)
        return {"follow_status": True}

    def unfollow_user(self, username_to_unfollow: str) -> Answer:
        """Follow a user no longer."""
        self._author()
        if username_to_unfollow not in self._following:
            return {"unfollow_status": False}
        self._following.remove(username_to_unfollow)
        return {"unfollow_status": True}

    def list_all_following(self) -> Answer:
        """List whom the user follows."""
        self._author()
        return {"following_list": list(self._following)}

    def get_tweet(self, tweet_id: int) -> Answer:
        """Show a post."""
        return _shown(self._tweet(tweet_id))

    def get_user_tweets(self, username: str) -> Answer:
        """Show all posts of a user."""
        return {"user_tweets": _all([each for each in self._all() if each.username == username])}

    def search_tweets(self, keyword: str) -> Answer:
        """Find the posts whose text or tags contain a keyword, in either case."""
        word = keyword.lower()
        found = [
            each for each in self._all() if word in " ".join([each.content, *each.tags]).lower()
        ]
        return {"matching_tweets": _all(found)}

    def get_tweet_comments(self, tweet_id: int) -> Answer:
        """Show the comments on a post."""
        self._tweet(tweet_id)
        return {"comments": [dict(each) for each in self._comments.get(str(tweet_id), [])]}

    def get_user_stats(self, username: str) -> Answer:
        """Count a user's posts, retweets and whom he follows."""
        return {
            "tweet_count": sum(each.username == username for each in self._all()),
            "following_count": len(self._following) if username == self._user else 0,
            "retweet_count": len(self._retweets.get(username, [])),
        }

    def _all(self) -> Sequence[Tweet]:
        return list(self._tweets.values())

    def _tweet(self, number: int) -> Tweet:
        if number not in self._tweets:
            raise RefusedError(f"tweet {number} does not exist")
        return self._tweets[number]

    def _author(self) -> None:
        if not self._in:
            raise RefusedError("no user is logged in: authenticate_twitter")


def read(config: Mapping[str, Any]) -> Posts:
    """Raises msgspec.ValidationError. Keys that it does not know are passed over."""
    return Posts(msgspec.convert(config, Config))


def _shown(tweet: Tweet) -> Answer:
    shown: Answer = msgspec.to_builtins(tweet)
    return shown


def _all(tweets: Sequence[Tweet]) -> list[Answer]:
    return [_shown(tweet) for tweet in tweets]
