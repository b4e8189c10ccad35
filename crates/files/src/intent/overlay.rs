//! What a reader sees of a group whose intent stands: the decided state, whole.

use ringfence_engine::StorageError;
use ringfence_env::World;
use ringfence_model::Key;

use super::codec::{Image, Standing};
use super::recover::{gives_way, same};
use super::slot::standing_intents;
use crate::layout::Layout;
use crate::read::{self, Stored};

/// Replaces what the records show by what the standing intents decided. Writes nothing.
///
/// `stored` is asked for each member that an intent covers; `None` means that the reader does not
/// look at that record.
pub(crate) fn overlay(
    world: &World,
    layout: &Layout,
    keys: Option<&[Key]>,
    mut change: impl FnMut(Key, &mut dyn FnMut(&Stored) -> Option<Stored>),
) -> Result<(), StorageError> {
    for found in standing_intents(world, layout, keys)? {
        for member in &found.intent.members {
            let (decided, other) = match found.standing {
                Standing::Committed => (&member.after, &member.before),
                Standing::Aborting => (&member.before, &member.after),
            };
            let path = layout.record(member.key).record;
            change(member.key, &mut |now| {
                if same(&now.before, decided) || !gives_way(now, member, other) {
                    return None;
                }
                match decided {
                    Image::Absent => Some(Stored::absent()),
                    Image::Bytes(bytes) => Some(read::parsed(member.key, &path, bytes.clone())),
                    Image::Opaque(_) => None,
                }
            });
        }
    }
    Ok(())
}
