"""measuring, with honesty built in

What `minnow bench KIND` runs is the module of that name. It has HELP, `add_arguments(parser)`, and
`run(args, say) -> int`, which hands what it finds to `say` line by line and gives the exit status.
"""
