"""The command line: what ``python -m forethought`` and the script of that name run."""

try:
    from forethought.cli import main
except KeyboardInterrupt:  # while modules load nothing has begun
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
