"""Programs of two versions beside each other: parts of an older build with parts of this tree."""
