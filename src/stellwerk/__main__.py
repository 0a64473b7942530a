"""``python -m stellwerk`` is ``stellwerk``."""

from stellwerk.cli.main import main

if __name__ == "__main__":
    main()
