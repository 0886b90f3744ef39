-- Each turn is written into the buffer zone while somebody waits, so its rows have few indexes: `place` is now also the
-- number of the row, and a row whose `blob_id` is its `buffer_id` is found by that.
DROP INDEX idx_buffer_zone_place;
DROP INDEX idx_buffer_zone_blob;
CREATE INDEX idx_buffer_zone_blob ON buffer_zone (user_id, blob_id) WHERE blob_id <> buffer_id;

-- The statement `count_additions` counts the new items of a group as changes of their tenants, all at once.
DROP TRIGGER memory_item_added;
