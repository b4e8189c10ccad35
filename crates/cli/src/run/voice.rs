//! What is said while the command runs.
//!
//! Standard error may be a pipe that nobody reads and that the command itself filled. Whoever waits
//! for it cannot kill a command in time, so that a thread of its own does the waiting.

use std::cell::OnceCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::output::note;

/// Says things in order, without waiting for a listener.
#[derive(Default)]
pub(super) struct Voice {
    mouth: OnceCell<Option<Mouth>>,
}

struct Mouth {
    words: Sender<String>,
    silent: Receiver<()>,
}

/// At the end a listener who is there has heard everything by then.
const PATIENCE: Duration = Duration::from_secs(1);

impl Voice {
    /// Says something soon. Without a thread to be had it stays unsaid; the exit code tells enough.
    pub(super) fn say(&self, text: String) {
        if let Some(mouth) = self.mouth.get_or_init(Mouth::open) {
            // The thread ends only after this sender.
            let _ = mouth.words.send(text);
        }
    }
}

impl Drop for Voice {
    fn drop(&mut self) {
        if let Some(Some(Mouth { words, silent })) = self.mouth.take() {
            drop(words);
            // Its end is the answer: nothing is ever sent.
            let _ = silent.recv_timeout(PATIENCE);
        }
    }
}

impl Mouth {
    fn open() -> Option<Self> {
        let (words, heard) = channel::<String>();
        let (last, silent) = channel();
        let speak = move || {
            let _last: Sender<()> = last;
            for text in heard {
                note(&text);
            }
        };
        std::thread::Builder::new().name("voice".to_owned()).spawn(speak).ok()?;
        Some(Self { words, silent })
    }
}
