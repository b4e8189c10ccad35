//! Not built: a run that asks for this layer fails and says so.

use crate::context::{Context, Trouble};
use crate::report::Row;

/// Fails.
pub(crate) fn run(_context: &Context) -> Result<Vec<Row>, Trouble> {
    Err(Trouble::Missing("the layer resource".to_owned()))
}
