"""`python -m detent` is the same as `detent`."""

from .cli import main

if __name__ == "__main__":
    main()
