-- name: sizes
-- The bytes of each table and index.
SELECT coalesce(s.type, 'table'), d.name, d.pgsize FROM dbstat AS d LEFT JOIN sqlite_schema AS s ON s.name = d.name
WHERE d.aggregate = TRUE

-- name: pages
SELECT page_size, page_count, freelist_count FROM pragma_page_size, pragma_page_count, pragma_freelist_count
