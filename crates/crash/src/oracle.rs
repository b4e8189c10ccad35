//! What may be found after a crash, judged from marks.
