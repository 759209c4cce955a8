from kprune.cli.main import main

main()
