"""Inheritance: a subclass begins with all that its parents declare, and never changes them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import detent
from detent import cancel_if, job_options, step
from running import database_url, show


@dataclass
class User:
    id: int
    active: bool = True
    subscribed: bool = True


# These stand for your database and for your logs.
USERS: dict[int, User] = {}
LOG: list[str] = []


class BaseWorkflow(detent.Workflow):
    """No nodes of its own: it only serves as a parent."""

    cancel_if(lambda self: not self.hero.active)
    job_options(queue="workflows", priority=1)

    def before_step_starts(self, name: str) -> None:
        LOG.append(f"{type(self).__name__}.{name} starts")

    @contextmanager
    def around_step(self, name: str) -> Iterator[None]:
        LOG.append(f"> {name}")
        yield
        LOG.append(f"< {name}")


class Onboarding(BaseWorkflow):
    @step
    def create_account(self) -> None:
        LOG.append("account")

    @step
    def send_welcome(self) -> None:
        LOG.append("welcome")


class PremiumOnboarding(Onboarding):
    cancel_if(lambda self: not self.hero.subscribed)  # beside that of the parent
    job_options(queue="premium")  # instead of that of the parent; the priority stays

    def send_welcome(self) -> None:  # the same node, another body
        LOG.append("welcome, with flowers")

    @step(before_step="send_welcome")
    def assign_manager(self) -> None:
        LOG.append("manager")


def make_app(url: str) -> detent.App:
    app = detent.App(
        url, include=[Onboarding, PremiumOnboarding], queues=["default", "workflows", "premium"], migrate=True
    )
    app.hero(User, key=lambda user: user.id, load=lambda id: USERS.get(int(id)))
    return app


def main(url: str) -> None:
    USERS.update({1: User(1), 2: User(2, subscribed=False), 3: User(3, active=False)})
    with make_app(url) as app:
        for workflow in (Onboarding, PremiumOnboarding):
            for user in USERS.values():
                run = app.options(hero=user).start(workflow)
                with suppress(detent.RunCanceled):
                    run.result()
                print(f"user {user.id}:", end=" ")
                show(run)
    print(*LOG, sep="\n")


if __name__ == "__main__":
    main(database_url())
