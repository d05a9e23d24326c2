-- More room for HOT updates: at 70, a thousand hot rows outgrew their pages.
ALTER TABLE @extschema@.rateLimits SET (fillfactor = 40);
