//! The model from outside: stored forms, damage, and agreement with other programs.
//!
//! `fixtures/v1/` holds the frozen bytes of every stored form, ours and other programs'.

#[cfg(test)]
mod json;
#[cfg(test)]
mod record;
