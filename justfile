# The same doors as `cargo xtask`, for those who type `just`.

# List the recipes.
default:
    @"{{just_executable()}}" --list --unsorted

# Check everything; reads only, rewrites nothing.
verify:
    cargo xtask test

# Rewrite what a machine can: format, then the lints that have one obvious fix.
fix:
    cargo fmt --all
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
    cargo fmt --all

# A real hybrid campaign of one minute, with four coordinators.
campaign *ARGS:
    cargo xtask campaign {{ARGS}}
