"""Inheritance: a subclass starts with everything that its parents declare, and never changes them."""

from collections.abc import Generator
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


# Stand-ins for your database and your logs.
USERS: dict[int, User] = {}
LOG: list[str] = []


class BaseWorkflow(detent.Workflow):
    """A class without nodes serves only as a parent."""

    job_options(queue="workflows", priority=1)

    @cancel_if
    def inactive(self) -> bool:
        return not self.hero.active

    def before_step_starts(self, name: str) -> None:
        LOG.append(f"{type(self).__name__}.{name} starts")

    @contextmanager
    def around_step(self, name: str) -> Generator[None, None, None]:
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
    job_options(queue="premium")  # replaces that of the parent; the priority stays

    @cancel_if  # in addition to that of the parent
    def unsubscribed(self) -> bool:
        return not self.hero.subscribed

    # The same node, another body.
    def send_welcome(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
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
