from segment.cli import main

main()
