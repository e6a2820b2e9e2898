"""Virtual time: a signup that takes nine days, run in an instant.

Production would run the same workflow; `TestingApp` has a clock that is moved by hand.
"""

from dataclasses import dataclass
from datetime import timedelta

import detent
from detent import step
from detent.testing import TestingApp
from running import database_url, show


class MailServerBusy(Exception):
    pass


@dataclass
class User:
    id: int
    email: str
    onboarded: bool = False


# Stand-ins for your database and your mail server.
USERS: dict[int, User] = {}
MAILS: list[str] = []
BUSY: list[str] = []  # the mail server refuses these once


def send_mail(what: str, user: User) -> None:
    if what in BUSY:
        BUSY.remove(what)
        raise MailServerBusy
    MAILS.append(f"{what} to {user.email}")


class SignupWorkflow(detent.Workflow):
    @step
    def send_welcome_email(self) -> None:
        send_mail("welcome", self.hero)

    @step(wait=timedelta(days=2))
    def send_reminder(self) -> None:
        try:
            send_mail("reminder", self.hero)
        except MailServerBusy:
            self.reattempt(wait=timedelta(minutes=10))

    @step(wait=timedelta(days=7), skip_if=lambda self: self.hero.onboarded)
    def complete_onboarding(self) -> None:
        self.hero.onboarded = True


def make_app(url: str) -> TestingApp:
    app = TestingApp(url, include=[SignupWorkflow])
    app.hero(User, key=lambda user: user.id, load=lambda id: USERS.get(int(id)))
    return app


def main(url: str) -> None:
    ada = USERS[1] = User(1, "ada@example.org")
    bob = USERS[2] = User(2, "bob@example.org", onboarded=True)
    with make_app(url) as app:
        begin = app.clock()
        run = app.options(hero=ada).start(SignupWorkflow)
        try:
            app.options(hero=ada).start(SignupWorkflow)
        except detent.AlreadyRunning as error:
            print(error)  # one active run of a workflow per hero
        app.speedrun(run)
        show(run)
        print("took", app.clock() - begin)

        BUSY.append("reminder")
        run = app.options(hero=bob).start(SignupWorkflow)
        app.speedrun(run)
        show(run)
    print(MAILS)


if __name__ == "__main__":
    main(database_url())
