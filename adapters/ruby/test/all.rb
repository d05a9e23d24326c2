# Runs all tests, or with -n /PATTERN/ some.
Dir["#{__dir__}/*_test.rb"].each { |file| require file }
