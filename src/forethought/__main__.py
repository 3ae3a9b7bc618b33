"""``python -m forethought``: the command line, where its script is not on the path."""

from forethought.cli import main

if __name__ == "__main__":
    main()
