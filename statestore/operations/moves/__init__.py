"""Moving house: an export becomes the application on another cluster, over mirrored topics."""
