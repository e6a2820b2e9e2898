"""Chaos: real faults on real databases, and a judge that does not ask Detent.

    python -m tools.chaos kill9 --count 1000 --database postgres
    python -m tools.chaos sessions --count 1000 --database mysql
    python -m tools.chaos --list

Three worker processes execute a mixed workload while a client process starts runs.  A fault is injected
again and again at random moments.  Then the faults stop, everything has to end, and the judge compares two
records that do not depend on Detent's tables:

    ledger    a table that transactional steps write to, in the transaction of the step; it has no unique
              key, so a repeated write is visible
    log       a file opened with O_APPEND; each body writes a line when it begins and when it ends, and each
              workflow writes a line when it has received a recorded result

The modules:

    workload    the workflows, graphs and deciders, and what each run must leave in the ledger
    client      a process that starts runs, and retries with the same ids
    nursery     a process that forks the others, so that a new worker is there within milliseconds
    places      databases and private servers
    faults      one class per kind of fault
    judge       the invariants and the figures
    campaign    the order of events: start, faults, end, verdict
"""
