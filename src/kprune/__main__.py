from kprune.cli import main

main()
