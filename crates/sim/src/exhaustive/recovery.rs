//! A crash in the call that brings in order what a crash left.

use ringfence_model::Key;

use super::Explorer;
use super::look::{BYSTANDER, Expected};
use crate::history::{Fate, History};
use crate::machine::{Machine, Point};
use crate::setup::target;

impl Explorer<'_> {
    /// Somebody opens the table after a power cut and stores something else; the power is cut again at
    /// each point of that.
    pub(super) fn cut_in_next_call(&mut self, at: &str, later: &Machine, expected: &Expected) {
        later.start_recording();
        let world = self.setup.world(later, 0);
        let stored =
            self.setup.open(&world).map(|engine| Self::store(later, &*engine, BYSTANDER + 1));
        let points = later.stop_recording();
        let Ok((fate, history)) = stored else { return };
        for (index, point) in points.iter().enumerate() {
            let is_over = index + 1 == points.len() && fate == Fate::Done;
            let expected = with_other(expected, &history, point, is_over);
            let at = format!("{at} > recovery {index} {}", point.label);
            self.cut(&at, later, &point.disk, &expected, false);
        }
    }
}

/// What is expected once somebody else has claimed something, or may have.
fn with_other(expected: &Expected, other: &History, point: &Point, is_over: bool) -> Expected {
    let mut expected = expected.clone();
    let key = Key::target(target(BYSTANDER + 1));
    for op in other.calls() {
        let Some((_, state)) = op.wrote.first() else { continue };
        expected.new.insert(key, state.clone());
        if is_over {
            expected.old.insert(key, state.clone());
        } else {
            expected.loose.insert(key);
        }
        if let Some((at, token)) = &op.granted
            && at.step < point.step
        {
            expected.fence = expected.fence.max(token.fence());
        }
    }
    expected
}
