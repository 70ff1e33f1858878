"""Learning rates: those in force, what schedulers are laid out for, and schedules that go on."""
