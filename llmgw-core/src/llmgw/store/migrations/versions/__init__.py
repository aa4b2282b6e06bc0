"""One file per released schema. A released file is never edited."""
