# Joins the parts of the SQL file: without comments and blank lines, with half of the indent, and with what fits on
# lines of 120 characters. $ENV{schema} is the schema to be.
use strict;
use warnings;
use open qw(:std :encoding(UTF-8));

my $width = 120;
my @lines;
while (<STDIN>) {
    next if /^\s*(--.*)?$/;
    chomp;
    s/\s+-- .*$// if !/'/;
    s/^( +)/" " x (length($1) \/ 2)/e;
    s/\bdouble precision\b/float8/g;
    s/\bCONSTANT //g;
    s/(?<!["'])\bboolean\b/bool/g;
    s/(?<!extension )(?<!extname = ')\bratelimit\b(?!\.(clock|error_style)\b)/$ENV{schema}/g;
    push @lines, $_;
}

# A line goes on where it ends no statement and opens no block; a line that begins one is not drawn up to it. Two
# literals are one only as long as a newline is between them.
sub goes_on {
    my ($line, $next) = @_;
    return 0 if $line =~ /(;|\$\w*\$|\b(BEGIN|DECLARE|THEN|ELSE|LOOP|CASE))$/ || $line =~ /^DO /;
    return 0 if $next =~ /^\s*(BEGIN|DECLARE|END|IF|ELSIF|ELSE|FOR|FOREACH|WHILE|LOOP|EXCEPTION|WHEN|CREATE|DO)\b/
        && $next !~ /^\s*(END[,) ]|WHEN .*(THEN|END)\b.*[^;]$|FOR (UPDATE|EACH))/;
    return !($line =~ /'$/ && $next =~ /^\s*'/);
}

# Puts a block of one statement on one line, where it fits.
sub fits { return length($_[0]) <= $width }

my (@joined, $indent);
for my $line (@lines) {
    (my $text = $line) =~ s/^(\s*)//;
    my $own = length $1;
    my $continues = @joined && goes_on($joined[-1], $line);
    if ($continues && fits("$joined[-1] $text")) {
        $joined[-1] .= $joined[-1] =~ /\($/ || $text =~ /^\)/ ? $text : " $text";
        next;
    }
    $indent = $own if !$continues;
    push @joined, " " x ($own > $indent + 1 ? $indent + 1 : $own) . $text;
}

my @out;
for my $line (@joined) {
    push @out, $line;
    if ($line =~ /^\s*(END IF;|END|\$\$;)$/) {
        for my $count (3, 4, 5) {
            next if @out < $count;
            my @block = @out[-$count .. -1];
            my ($first, $last) = @block[0, -1];
            next if $last =~ /END IF/ ? $count > 3 || $first !~ /^\s*IF .*THEN$/ : $last !~ /\$\$/ || $first !~ /\$\$$/;
            next if grep { !/;$|BEGIN$|END$/ } $last =~ /END IF/ ? @block[1 .. $#block] : ();
            my $whole = join " ", $first, map { s/^\s+//r } @block[1 .. $#block];
            next if !fits($whole);
            splice @out, -$count, $count, $whole;
            last;
        }
    }
}

# Draws short statements of one indent together, so that what belongs together is on one line.
my @drawn;
for my $line (@out) {
    my ($indent) = $line =~ /^(\s*)/;
    (my $text = $line) =~ s/^\s+//;
    my $simple = qr/^\s+(?!END|RETURN|EXIT|CONTINUE|PERFORM|INSERT|UPDATE|DELETE)[\w.\[\]]+ (:=|CONSTANT|[\w.]+)[^;]*;( [\w.]+ [^;]*;)*$/;
    if (@drawn && $drawn[-1] =~ $simple && $line =~ $simple && $drawn[-1] =~ /^$indent\S/ && fits("$drawn[-1] $text")) {
        $drawn[-1] .= " $text";
    } else {
        push @drawn, $line;
    }
}

# Puts the only statement of a branch behind its THEN or ELSE.
my @branches;
for my $i (0 .. $#drawn) {
    my $line = $drawn[$i];
    (my $text = $line) =~ s/^\s+//;
    my $alone = $i < $#drawn && $drawn[$i + 1] =~ /^\s*(ELSIF|ELSE|END IF|WHEN|END CASE)\b/;
    if (@branches && $branches[-1] =~ /^\s*((IF|ELSIF|WHEN)\b.*THEN|ELSE)$/ && $alone && $line =~ /;$/
        && fits("$branches[-1] $text")) {
        $branches[-1] .= " $text";
    } else {
        push @branches, $line;
    }
}

my @whole;
for my $line (@branches) {
    (my $text = $line) =~ s/^\s+//;
    if (@whole && $whole[-1] eq 'DECLARE' && fits("DECLARE $text")) { $whole[-1] .= " $text" } else { push @whole, $line }
}
print "$_\n" for @whole;
