# Words back to running text, for sacreBLEU: sed -E -f detokenize.sed
s/^ //
s/ ([,;:!?%)]|\.+)/\1/g
s/\( /(/g
s/" ([^"]*) "/"\1"/g
s/ ' s /'s /g
s: / :/:g
