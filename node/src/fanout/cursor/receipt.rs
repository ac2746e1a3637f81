//! What an acknowledgement promises, as a value that moves a cursor.

use tailwater_wire::ids::Offset;

/// A child partition's acknowledgement: everything of this origin below its watermark is flushed there. A clone promises
/// the same once more; only models, which copy whole cursors, make one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    watermark: Offset,
}

impl Receipt {
    /// From an answer that says that the batch which leaves `watermark` is flushed. Only committers make receipts.
    #[must_use]
    pub fn flushed(watermark: Offset) -> Receipt {
        Receipt { watermark }
    }

    /// Everything below is flushed.
    #[must_use]
    pub fn watermark(&self) -> Offset {
        self.watermark
    }
}
