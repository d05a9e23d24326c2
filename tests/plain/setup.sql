-- What every file stands on: dist/ratelimit.sql is loaded already, and has the rights of a schema that everybody uses.
GRANT USAGE ON SCHEMA ratelimit TO PUBLIC;

-- Shows an error as text.
CREATE FUNCTION public.error_of(statement text, with_hint boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    detail text;
    hint text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN concat_ws(' / ', sqlstate || ': ' || sqlerrm, nullif(detail, ''),
                     CASE WHEN with_hint THEN nullif(hint, '') END);
END
$$;
